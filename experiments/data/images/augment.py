"""Random crops and flips of a whole batch at once, from an explicit generator.

The generator is a CPU generator for images on any device: one checkpointed state then reproduces a run on every
device, and only a few integers per image are transferred.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def random_crop(images: Tensor, *, padding: int, generator: torch.Generator) -> Tensor:
    """Shift each image by its own random offset, filling with zeros, as ``RandomCrop(size, padding)`` does.

    Shape, dtype and device stay.

    Args:
        images: (batch, channels, height, width), any dtype; not yet normalised, so that zero is black.
        padding: pixels added on every side; each offset is uniform on 0, …, 2·padding.
        generator: CPU generator; draws two integers per image.

    Raises:
        ValueError: if ``padding`` is negative.
    """
    if padding < 0:
        raise ValueError(f"padding must not be negative, got {padding}")
    batch, _, height, width = images.shape
    top, left = torch.randint(2 * padding + 1, (2, batch), generator=generator).to(images.device, non_blocking=True)
    # A view of every crop, (batch, channels, 2·padding + 1, 2·padding + 1, height, width), to choose from.
    crops = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    return crops[torch.arange(batch, device=images.device), :, top, left]


def random_flip(images: Tensor, *, generator: torch.Generator) -> Tensor:
    """Mirror each image (batch, channels, height, width) left to right with probability one half.

    Shape, dtype and device stay. The CPU generator draws one integer per image.
    """
    flipped = torch.randint(2, (len(images), 1, 1, 1), generator=generator)
    return torch.where(flipped.to(images.device, torch.bool, non_blocking=True), images.flip(-1), images)


def crop_flip(images: Tensor, *, padding: int, generator: torch.Generator) -> Tensor:
    """Apply the usual training augmentation of CIFAR: :func:`random_crop`, then :func:`random_flip`."""
    return random_flip(random_crop(images, padding=padding, generator=generator), generator=generator)
