"""Labelled images and their channel statistics."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from probattn.experiments.data.sealed_files import digest


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: ``images`` uint8 (n, C, H, W), ``labels`` int64 (n,).

    Raises:
        ValueError: a tensor has another shape or dtype, or the lengths differ.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        pixels, labels = self.images, self.labels
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise ValueError(f"images must be uint8 (n, C, H, W), got {pixels.dtype} {tuple(pixels.shape)}")
        if labels.dtype != torch.int64 or labels.shape != pixels.shape[:1]:
            raise ValueError(f"labels must be int64 ({len(pixels)},), got {labels.dtype} {tuple(labels.shape)}")

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def digest(self) -> str:
        """Digest of the images and labels, computed once."""
        return digest((self.images, self.labels))

    def select(self, indices: Tensor) -> Self:
        """Return a copy of the images at ``indices``, int64 (m,), in that order."""
        return type(self)(self.images[indices], self.labels[indices])


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and population standard deviation per channel of uint8 (n, C, H, W), scaled to 0..1."""
    statistics = [torch.std_mean(channel.double() / 255, correction=0) for channel in images.unbind(1)]
    return tuple(mean.item() for _, mean in statistics), tuple(std.item() for std, _ in statistics)
