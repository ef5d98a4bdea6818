"""Labelled images, and their stratified parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


class DatasetError(RuntimeError):
    """A data set is missing, incomplete or damaged; the message says where and what to do."""


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: ``images`` uint8 (n, C, H, W), ``labels`` int64 (n,).

    Raises:
        ValueError: if a tensor has another shape or dtype, or the lengths differ.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images must be uint8 (n, C, H, W), got {_describe(self.images)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(f"labels must be int64 ({len(self.images)},), got {_describe(self.labels)}")

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> Self:
        """The images at ``indices``, int64 (m,), in that order, as a copy."""
        return type(self)(self.images[indices], self.labels[indices])

    def to(self, device: torch.device | str) -> Self:
        """The same images on ``device``."""
        return type(self)(self.images.to(device), self.labels.to(device))


def stratified_order(labels: Tensor, *, generator: torch.Generator) -> Tensor:
    """A random order of the data, int64 (n,), of which every prefix holds the classes in proportion.

    Classes of equal size differ by at most one image in any prefix, and no class misses from a prefix as
    long as the number of classes, or longer.

    Args:
        labels: int64 (n,), not negative.
        generator: CPU generator; draws one permutation.
    """
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    classes, sizes = labels[order], labels.bincount()
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[classes]
    return order[(rank.double() / sizes[classes]).argsort(stable=True)]


def split(data: Images, *, sizes: Sequence[int], generator: torch.Generator) -> tuple[Images, ...]:
    """Draw disjoint stratified parts of the given sizes, each in the order of the data.

    Raises:
        ValueError: if there are fewer images than ``sizes`` ask for.
    """
    if sum(sizes) > len(data):
        raise ValueError(f"cannot draw {' + '.join(map(str, sizes))} of {len(data)} images")
    order = stratified_order(data.labels, generator=generator)[: sum(sizes)]
    return tuple(data.select(part.sort().values) for part in order.split(list(sizes)))


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and (population) standard deviation per channel of uint8 (n, C, H, W), scaled to 0..1."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    # Counting the 256 levels is exact, and spares a float copy of the data.
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in images.unbind(1)]).double()
    weights = counts / counts.sum(1, keepdim=True)
    mean = weights @ levels
    variance = (weights * (levels - mean[:, None]) ** 2).sum(1)
    return tuple(mean.tolist()), tuple(variance.sqrt().tolist())


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
