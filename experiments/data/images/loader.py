"""Loader of image batches from one tensor on the device."""

from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from probattn.experiments.data.batch_loader import BatchLoader
from probattn.experiments.data.images.augment import crop_flip
from probattn.experiments.data.images.labelled_images import Images


class ImageLoader(BatchLoader):
    """Loader of batches: ``x`` float32 (batch, C, H, W), augmented and normalised, and ``y`` int64 (batch,).

    All images are on the device as uint8, which CIFAR is small enough for; a batch is then one gather, and there are
    no worker processes to seed. The last batch may be smaller, unless ``drop_last``.

    ``generator`` is the only source of randomness: its state at an epoch's first batch determines that epoch bit for
    bit, and the epoch advances it. An epoch without shuffling and augmentation does not use it.

    Args:
        data: the images and their labels.
        batch_size: images per batch.
        mean, std: per channel, of pixels scaled to 0..1; ``x = (pixel / 255 - mean) / std``.
        shuffle: draw a new order in each epoch.
        augment: crop with zero padding and flip at random, before normalisation.
        padding: pixels of padding of the random crop.
        generator: CPU generator; default: a new one with torch's fixed default seed.
        device: device of the data and the batches.
        drop_last: omit the last batch if it is smaller than ``batch_size``.

    Attributes:
        generator: as given; save and restore its state to resume.
        num_data: number of images, including those that ``drop_last`` omits.
        batch_size, device: as given.

    Raises:
        ValueError: if ``batch_size`` is below 1, there is no batch to yield, ``mean`` or ``std`` does not have one
            entry per channel, a ``std`` is not positive, or ``generator`` is not on the CPU.
    """

    def __init__(
        self,
        data: Images,
        *,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        shuffle: bool = False,
        augment: bool = False,
        padding: int = 4,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        drop_last: bool = False,
    ) -> None:
        super().__init__(len(data), batch_size=batch_size, shuffle=shuffle, generator=generator)
        if len(data) < (batch_size if drop_last else 1):
            raise ValueError(f"no batch to yield: {len(data)} images, {batch_size=}, {drop_last=}")
        channels = data.images.shape[1]
        if not len(mean) == len(std) == channels:
            raise ValueError(f"mean and std need {channels} entries, one per channel: {mean=}, {std=}")
        if min(std) <= 0:
            raise ValueError(f"std must be positive, got {tuple(std)}")
        self.augment = augment
        self.padding = padding
        self.drop_last = drop_last
        self._data = data
        self._mean = torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32).view(-1, 1, 1)
        self.to(device)

    def to(self, device: torch.device | str) -> Self:
        """Move the data and all further batches to ``device``, in place; returns the loader."""
        self.device = torch.device(device)
        self._data = self._data.to(self.device)
        self._mean, self._std = self._mean.to(self.device), self._std.to(self.device)
        return self

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self.num_data // self.batch_size if self.drop_last else super().__len__()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch."""
        order = torch.arange(self.num_data)
        if self.shuffle:
            order = torch.randperm(self.num_data, generator=self.generator)
        for indices in order.to(self.device, non_blocking=True).split(self.batch_size)[: len(self)]:
            batch = self._data.select(indices)
            pixels = batch.images
            if self.augment:
                pixels = crop_flip(pixels, padding=self.padding, generator=self.generator)
            yield (pixels.float() / 255 - self._mean) / self._std, batch.labels
