"""Loaders of batches from tensors on the device."""

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor


class BatchLoader:
    """Base of loaders that hold their data: size of the batches, order, and generator.

    Args:
        num_data: number of examples.
        batch_size: examples per batch; the last batch may be smaller.
        shuffle: draw a new order in each epoch.
        generator: CPU generator, the only source of randomness; default: a new one with torch's fixed default seed.

    Attributes:
        num_data, batch_size, shuffle, generator: as given; the generator's state is what a resumed run needs.
        order: positions in the data of the examples of an epoch that is not shuffled ``(num_data,)``; None if that is
            the data's own order.
    """

    order: Tensor | None = None

    def __init__(self, num_data: int, *, batch_size: int, shuffle: bool, generator: torch.Generator | None) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.generator = torch.Generator() if generator is None else generator
        self.num_data, self.batch_size, self.shuffle = num_data, batch_size, shuffle

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return -(-self.num_data // self.batch_size)


class TableLoader(BatchLoader):
    """Loader of batches of rows: ``x`` float32 (batch, columns) and ``y`` (batch, ...).

    Args:
        features: ``(n, columns)``.
        labels: ``(n, ...)``.
        batch_size, shuffle, generator: as for :class:`BatchLoader`.
        device: device of the data and the batches.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        *,
        batch_size: int,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(len(features), batch_size=batch_size, shuffle=shuffle, generator=generator)
        self._features, self._labels = features, labels
        self.to(device)

    def to(self, device: torch.device | str) -> Self:
        """Move the data and all further batches to ``device``, in place; returns the loader."""
        self.device = torch.device(device)
        self._features, self._labels = self._features.to(self.device), self._labels.to(self.device)
        return self

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch."""
        order = torch.arange(self.num_data)
        if self.shuffle:
            order = torch.randperm(self.num_data, generator=self.generator)
        for indices in order.to(self.device, non_blocking=True).split(self.batch_size):
            yield self._features[indices], self._labels[indices]
