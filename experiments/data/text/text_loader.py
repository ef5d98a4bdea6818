"""Loader of batches of sequences of similar length."""

from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from probattn.experiments.data.batch_loader import BatchLoader

_BATCHES_PER_GROUP = 50


class TextLoader(BatchLoader):
    """Loader of batches: ``x`` int64 or float32 (batch, n, ...), ``y`` (batch, ...) and ``mask`` bool (batch, n).

    Sequences are padded at the end with 0 to the longest of their batch, of length n; the mask is True for tokens. All
    tokens are concatenated in one tensor on the device, and a batch is one gather.

    A shuffled epoch has batches of similar length: a random order is cut into groups of 50 batches, each group is
    sorted by length and cut into batches, and the batches are shuffled. Otherwise the order is that of the data, or,
    with ``by_length``, from the longest to the shortest sequence: the same predictions with less padding, in half the
    time for IMDB's reviews. The first batch needs the most memory, and the others fit into what it frees.

    Args:
        encoded: sequences (length, ...) of at least one token, all of integers (token ids) or of floats (features).
        labels: (sequences, ...).
        batch_size, shuffle, generator: as for :class:`BatchLoader`.
        by_length: order sequences by length where they are not shuffled; equally long ones stay in the data's order.
        device: device of the data and the batches.
    """

    def __init__(
        self,
        encoded: Sequence[Tensor],
        labels: Tensor,
        *,
        batch_size: int,
        shuffle: bool = False,
        by_length: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(len(encoded), batch_size=batch_size, shuffle=shuffle, generator=generator)
        self._lengths = torch.tensor([len(sequence) for sequence in encoded])
        self.order = self._lengths.argsort(stable=True, descending=True) if by_length else None
        self._starts = self._lengths.cumsum(0) - self._lengths
        tokens = torch.cat(list(encoded))
        self._tokens, self._labels = tokens.float() if tokens.is_floating_point() else tokens.int(), labels
        self.to(device)

    def to(self, device: torch.device | str) -> Self:
        """Move the data and all further batches to ``device``, in place; returns the loader."""
        self.device = torch.device(device)
        self._tokens, self._labels = self._tokens.to(self.device), self._labels.to(self.device)
        return self

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the batches of one epoch."""
        order = torch.arange(self.num_data) if self.order is None else self.order
        for indices in self._shuffled() if self.shuffle else order.split(self.batch_size):
            yield self._batch(indices)

    def _shuffled(self) -> list[Tensor]:
        """Return the indices of each batch of a shuffled epoch."""
        order = torch.randperm(self.num_data, generator=self.generator)
        groups = order.split(_BATCHES_PER_GROUP * self.batch_size)
        ordered = (group[self._lengths[group].argsort(stable=True)] for group in groups)
        batches = [batch for group in ordered for batch in group.split(self.batch_size)]
        return [batches[index] for index in torch.randperm(len(batches), generator=self.generator)]

    def _batch(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lengths = self._lengths[indices][:, None]
        steps = torch.arange(int(lengths.max()))
        mask = steps < lengths
        positions = (self._starts[indices][:, None] + steps).where(mask, 0)
        mask, positions, indices = (part.to(self.device, non_blocking=True) for part in (mask, positions, indices))
        tokens = self._tokens[positions]
        tokens = tokens if tokens.is_floating_point() else tokens.long()
        padding = ~mask.view(*mask.shape, *[1] * (tokens.ndim - 2))
        return tokens.masked_fill_(padding, 0), self._labels[indices], mask
