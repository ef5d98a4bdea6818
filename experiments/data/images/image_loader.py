"""Loader of image batches from one tensor on the device, cropped and flipped at random on request."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from probattn.experiments.data.batch_loader import TableLoader
from probattn.experiments.data.images.labelled_images import Images


class ImageLoader(TableLoader):
    """Loader of batches: ``x`` float32 (batch, C, H, W), augmented and normalised, and ``y`` int64 (batch,).

    All images are on the device as uint8, which CIFAR is small enough for. A batch is then one gather, and there are
    no worker processes to seed.

    ``generator`` is the only source of randomness: its state at an epoch's first batch determines that epoch bit for
    bit, and the epoch advances it. An epoch without shuffling and augmentation does not use it.

    Args:
        data: the images and their labels.
        mean, std: per channel, of pixels scaled to 0..1; ``x = (pixel / 255 - mean) / std``.
        augment: crop with zero padding and flip at random, before normalisation.
        device: device of the data and the batches.
        options: ``batch_size``, ``shuffle`` and ``generator`` as for a table.

    Raises:
        ValueError: there are no images.
    """

    def __init__(
        self,
        data: Images,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augment: bool = False,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        if not len(data):
            raise ValueError("no batch to yield: there are no images")
        super().__init__(data.images, data.labels, device=device, **options)
        statistics = torch.tensor([mean, std], dtype=torch.float32, device=device)[..., None, None]
        self.augment = augment
        self._mean, self._std = statistics

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch."""
        for images, labels in super().__iter__():
            if self.augment:
                images = crop_flip(images, generator=self.generator)
            yield (images.float() / 255 - self._mean) / self._std, labels


def crop_flip(images: Tensor, *, padding: int = 4, generator: torch.Generator) -> Tensor:
    """Shift each image by a random offset, filling with zeros, and mirror it with probability one half.

    This is ``RandomCrop(size, padding)`` and ``RandomHorizontalFlip()`` of torchvision for a whole batch at once. The
    CPU generator serves images on any device: one stored state then reproduces a run on every device.

    Args:
        images: (batch, channels, height, width), any dtype and device, not yet normalised, so that zero is black.
        padding: pixels added on every side; each offset is uniform on 0, …, 2·padding.
        generator: CPU generator; draws three integers per image.
    """
    number, _, height, width = images.shape
    top, left = torch.randint(2 * padding + 1, (2, number), generator=generator).to(images.device, non_blocking=True)
    # A view of every crop, (batch, channels, 2·padding + 1, 2·padding + 1, height, width), to choose from.
    crops = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    cropped = crops[torch.arange(number, device=images.device), :, top, left]
    flipped = torch.randint(2, (number, 1, 1, 1), generator=generator)
    return torch.where(flipped.to(images.device, torch.bool, non_blocking=True), cropped.flip(-1), cropped)
