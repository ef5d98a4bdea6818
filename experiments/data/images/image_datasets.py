"""Labelled images as uint8 tensors, and data sets of them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from probattn.experiments.data.batch_loader import ImageLoader
from probattn.experiments.data.dataset import Dataset, Part
from probattn.experiments.data.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Images(Part):
    """Labelled images: ``images`` uint8 (n, C, H, W), ``labels`` int64 (n,), and the n ``files``
    that they are from, or none; a selection has none.

    Raises:
        ValueError: a tensor has another shape or dtype, or the lengths differ.
    """

    images: Tensor
    labels: Tensor
    files: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        pixels = self.images
        labels = self.labels
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise ValueError(
                f"images must be uint8 (n, C, H, W), got {pixels.dtype} {tuple(pixels.shape)}"
            )
        if labels.dtype != torch.int64 or labels.shape != pixels.shape[:1]:
            raise ValueError(
                f"labels must be int64 ({len(pixels)},), got {labels.dtype} {tuple(labels.shape)}"
            )


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset):
    """An image data set.

    Attributes:
        mean, std: per channel, of the training images scaled to 0..1.
        augment: True if training images are shifted at random; False for digits.
        flip: True if they are also mirrored.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool
    flip: bool = field(default=True, kw_only=True)

    def batches(self, images: Images, /, *, shuffle: bool = False, **options: Any) -> ImageLoader:
        """Return a loader of normalised images: in their order, or shuffled for training and then
        augmented."""
        options |= {"mean": self.mean, "std": self.std, "augment": shuffle and self.augment}
        return ImageLoader(images.images, images.labels, shuffle=shuffle, flip=self.flip, **options)

    def preprocessing(self) -> dict[str, Any]:
        """Return the shape of the images and their normalisation."""
        return {
            "kind": "images",
            "shape": self.test.images.shape[1:],
            "mean": self.mean,
            "std": self.std,
        }


def from_parts(
    name: str, classes: tuple[str, ...], *parts: Images, augment: bool, flip: bool = True
) -> ImageDataset:
    """Return the data set of three parts, whose normalisation is that of the training part.

    Raises:
        DatasetError: a colour channel of all training images has one value everywhere.
    """
    mean, std = channel_statistics(parts[0].images)
    if min(std) < 1e-9:
        raise DatasetError(
            "a colour channel has one value in all training images: use other images"
        )
    train, valid, test = parts
    return ImageDataset(name, classes, train, valid, test, mean, std, augment, flip=flip)


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and population standard deviation per channel of uint8 (n, C, H, W), scaled to
    0..1."""
    statistics = [
        torch.std_mean(channel.double() / 255, correction=0) for channel in images.unbind(1)
    ]
    return tuple(mean.item() for _, mean in statistics), tuple(std.item() for std, _ in statistics)
