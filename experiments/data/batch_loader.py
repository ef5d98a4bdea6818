"""Loaders of batches from tensors on the device: rows, images and texts."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Floats = Sequence[float]
_BATCHES_PER_GROUP = 50
# Share of the categories of a table that are unknown in training.
UNKNOWN_SHARE = 0.02


class BatchLoader:
    """Loader of batches ``x`` (batch, ...) and ``y`` (batch, ...); the last batch may be smaller.

    Rows and images are on the device. A batch is then one gather, and there are no worker processes
    to seed. The generator is the only source of randomness: its state at an epoch's first batch
    determines that epoch bit for bit.

    Args:
        inputs: ``(n, ...)``.
        labels: ``(n, ...)``.
        batch_size: examples per batch.
        shuffle: draw a new order in each epoch.
        generator: CPU generator, whose state a resumed run needs; default: a new one with torch's
            fixed default seed.
        device: device of the data and the batches.
        by_length: has no effect on rows and images, which are equally long.
        categories: which inputs are codes of categories, bool (inputs,): a small share of them
            becomes 0, an unknown category, so that its token is trained.

    Attributes:
        num_data: number of examples.
        batch_size, shuffle, generator, device: as given.
        order: positions in the data of the examples of an epoch that is not shuffled
            ``(num_data,)``.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        *,
        batch_size: int,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        by_length: bool = False,
        categories: Tensor | None = None,
    ) -> None:
        self.num_data = len(labels)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.generator = torch.Generator() if generator is None else generator
        self.device = torch.device(device)
        self.order = torch.arange(len(labels))
        self._inputs = inputs.to(device)
        self._labels = labels.to(device)
        self._categories = categories

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return -(-self.num_data // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of one epoch."""
        yield from map(self._batch, self._positions())

    def _positions(self) -> Sequence[Tensor]:
        """Return the positions of each batch of an epoch, on the CPU."""
        order = (
            torch.randperm(self.num_data, generator=self.generator) if self.shuffle else self.order
        )
        return order.split(self.batch_size)

    def _batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        indices = indices.to(self.device, non_blocking=True)
        inputs = self._inputs[indices]
        if self._categories is not None and self._categories.any():
            drawn = torch.rand(inputs.shape, generator=self.generator) < UNKNOWN_SHARE
            is_unknown = (drawn & self._categories).to(self.device, non_blocking=True)
            inputs = inputs.masked_fill(is_unknown, 0.0)
        return inputs, self._labels[indices]


class ImageLoader(BatchLoader):
    """Loader of batches: ``x`` float32 (batch, C, H, W), augmented and normalised, and ``y`` int64
    (batch,).

    Args:
        images: uint8 (n, C, H, W).
        labels: int64 (n,).
        mean, std: per channel, of pixels scaled to 0..1; ``x = (pixel / 255 - mean) / std``.
        augment: shift at random, filling with zeros, before normalisation.
        flip: also mirror at random what is shifted.
        options: as for :class:`BatchLoader`.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        mean: Floats,
        std: Floats,
        augment: bool = False,
        flip: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(images, labels, **options)
        self.augment = augment
        self._flip = flip
        self._mean, self._std = torch.tensor([mean, std], dtype=torch.float32, device=self.device)[
            ..., None, None
        ]

    def _batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        images, labels = super()._batch(indices)
        if self.augment:
            images = shift(images, flip=self._flip, generator=self.generator)
        return (images.float() / 255 - self._mean) / self._std, labels


def shift(
    images: Tensor, *, padding: int = 4, flip: bool = True, generator: torch.Generator
) -> Tensor:
    """Shift each image by a random offset, filling with zeros, and mirror it with probability one
    half.

    This is ``RandomCrop(size, padding)`` and ``RandomHorizontalFlip()`` of torchvision for a whole
    batch at once. The CPU generator serves images on any device: one stored state then reproduces a
    run on every device.

    Args:
        images: (batch, channels, height, width), any dtype and device, not yet normalised, so that
            zero is black.
        padding: pixels added on every side; each offset is uniform on 0, …, 2·padding.
        flip: False mirrors none.
        generator: CPU generator; draws two integers per image, and one more for the mirror.
    """
    number, _, height, width = images.shape
    dy, dx = torch.randint(2 * padding + 1, (2, number), generator=generator).to(
        images.device, non_blocking=True
    )
    # A view of every crop, (batch, channels, 2·padding + 1, 2·padding + 1, height, width), to
    # choose from.
    crops = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    cropped = crops[torch.arange(number, device=images.device), :, dy, dx]
    if not flip:
        return cropped
    flipped = torch.randint(2, (number, 1, 1, 1), generator=generator)
    return torch.where(
        flipped.to(images.device, torch.bool, non_blocking=True), cropped.flip(-1), cropped
    )


class TextLoader(BatchLoader):
    """Loader of batches: ``x`` int64 (batch, n, ...), ``y`` (batch, ...) and ``mask`` bool (batch,
    n).

    Sequences are padded at the end with 0 to the longest of their batch, of length n; the mask is
    True for tokens.

    A shuffled epoch has batches of similar length: a random order is cut into groups of 50 batches,
    each group is sorted by length and cut into batches, and the batches are shuffled. Otherwise the
    order is that of the data, or, with ``by_length``, from the longest to the shortest sequence:
    the same predictions with less padding, in half the time for IMDB's reviews. The first batch
    needs the most memory, and the others fit into what it frees.

    Args:
        encoded: token ids (length, ...) of each sequence, of at least one token.
        labels: (sequences, ...).
        by_length: order sequences by length where they are not shuffled; equally long ones stay in
            the data's order.
        options: as for :class:`BatchLoader`.
    """

    def __init__(
        self, encoded: Sequence[Tensor], labels: Tensor, *, by_length: bool = False, **options: Any
    ) -> None:
        self._encoded = encoded
        self._lengths = torch.tensor(list(map(len, encoded)))
        super().__init__(self._lengths, labels, **options)
        if by_length:
            self.order = self._lengths.argsort(stable=True, descending=True)

    def _positions(self) -> Sequence[Tensor]:
        if not self.shuffle:
            return super()._positions()
        order = torch.randperm(self.num_data, generator=self.generator)
        groups = order.split(_BATCHES_PER_GROUP * self.batch_size)
        batches = list[Tensor]()
        for group in groups:
            by_length = group[self._lengths[group].argsort(stable=True)]
            batches += by_length.split(self.batch_size)
        return [batches[index] for index in torch.randperm(len(batches), generator=self.generator)]

    def _batch(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lengths, labels = super()._batch(indices)
        sequences = [self._encoded[index] for index in indices.tolist()]
        tokens = pad_sequence(sequences, batch_first=True).to(
            self.device, torch.long, non_blocking=True
        )
        mask = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        return tokens, labels, mask
