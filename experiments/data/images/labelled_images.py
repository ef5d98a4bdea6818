"""Labelled images and their channel statistics."""

from dataclasses import dataclass

import torch
from torch import Tensor

from probattn.experiments.data.dataset import Part


@dataclass(frozen=True, eq=False)
class Images(Part):
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


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and population standard deviation per channel of uint8 (n, C, H, W), scaled to 0..1."""
    statistics = [torch.std_mean(channel.double() / 255, correction=0) for channel in images.unbind(1)]
    return tuple(mean.item() for _, mean in statistics), tuple(std.item() for std, _ in statistics)
