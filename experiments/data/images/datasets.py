"""Image data sets as uint8 tensors: handwritten digits, CIFAR-10 and CIFAR-100.

CIFAR is looked for under one root folder: the argument, else the environment variable ``PROBATTN_DATA``,
else ``data``. It may lie there as torchvision's own files, or as one folder of 32×32 RGB images a class,
``{cifar10-jpeg,cifar10,.}/{train,test}/<class>/*.{jpg,png}``, which is decoded once and cached as a tensor.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from probattn.experiments.data.images import cifar
from probattn.experiments.data.images.images import DatasetError, Images, channel_statistics, split
from probattn.experiments.data.images.loader import ImageLoader


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A data set split in three, with what training needs to know about it.

    Attributes:
        name: as given to :func:`load`.
        classes: names, in the order of the labels.
        train, valid, test: disjoint parts.
        mean, std: per channel, of the training images scaled to 0..1.
        augment: whether training crops and flips at random: natural images yes, digits no.
        domains: test sets from elsewhere, by name.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    valid: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool
    domains: Mapping[str, Images] = field(default_factory=dict)

    def training(self, *, batch_size: int, generator: torch.Generator, device: str = "cpu") -> ImageLoader:
        """Batches in random order, augmented if these images are to be."""
        options = {"mean": self.mean, "std": self.std, "generator": generator, "device": device}
        return ImageLoader(self.train, batch_size=batch_size, shuffle=True, augment=self.augment, **options)

    def sample(self, number: int, *, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of so many training images, not augmented."""
        chosen = torch.randperm(len(self.train), generator=generator)[:number]
        return next(iter(self.batches(self.train.select(chosen), batch_size=number)))

    def batches(self, images: Images, *, batch_size: int, device: str = "cpu") -> ImageLoader:
        """Batches of any images as the network wants them: in their order, normalised, not augmented.

        Raises:
            DatasetError: images of another size or number of channels than those of this data set.
        """
        expected, found = self.test.images.shape[1:], images.images.shape[1:]
        if found != expected:
            raise DatasetError(f"the network was trained on images {tuple(expected)}, these are {tuple(found)}")
        return ImageLoader(images, batch_size=batch_size, mean=self.mean, std=self.std, device=device)

    def keep(self, folder: Path) -> None:
        """Writes into a run's folder what was fitted to the training part and is needed to read others: nothing."""

    def of(self, folder: Path) -> "ImageDataset":
        """The same data as the run in a folder reads it."""
        return self


NAMES = ("digits", *cifar.CIFAR)
"""The names :func:`load` knows."""


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """The folder of the data sets: the argument, else ``$PROBATTN_DATA``, else ``data``."""
    return Path(root or os.environ.get("PROBATTN_DATA") or "data").expanduser()


def load(
    name: str, *, root: str | os.PathLike[str] | None = None, seed: int = 0, limit: int | None = None
) -> ImageDataset:
    """Load a data set and cut off its validation part.

    ``digits`` (8×8, grey, from scikit-learn) is split 60/20/20. CIFAR keeps its own test part; one tenth of
    its training part becomes the validation part. Every cut is stratified by class.

    Args:
        name: one of :data:`NAMES`.
        root: folder to look for CIFAR in; default: ``$PROBATTN_DATA``, else ``data``. Decoded images are
            cached in ``<root>/.probattn-cache``, where that can be written. The cache is made anew when the
            number of files or the folders' newest modification time changes; remove it by hand after a
            change that leaves both, such as editing a file in place.
        seed: fixes the cuts, and nothing else.
        limit: keep at most this many training images, and of the validation and test images the same
            fraction, but one a class at least where there is one. A smaller limit keeps a subset of what a
            larger one keeps.

    Raises:
        ValueError: if ``name`` is unknown or ``limit`` is below 1.
        DatasetError: if the data are missing, incomplete or damaged. Nothing is ever deleted.
    """
    if name not in NAMES:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(NAMES)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    generator = torch.Generator().manual_seed(seed)
    if name == "digits":
        classes, whole = _digits()
        fifth = round(len(whole) / 5)
        sizes = (len(whole) - 2 * fifth, fifth, fifth)
        train, valid, test = split(whole, sizes=sizes, generator=generator)
    else:
        classes, whole, test = cifar.read(name, data_root(root))
        tenth = len(whole) // 10
        train, valid = split(whole, sizes=(len(whole) - tenth, tenth), generator=generator)
    if limit is not None:
        fraction = min(1.0, limit / len(train))
        rest = [max(len(classes), round(fraction * len(part))) for part in (valid, test)]
        train, valid, test = (
            split(part, sizes=(min(size, len(part)),), generator=generator)[0]
            for part, size in zip((train, valid, test), (limit, *rest), strict=True)
        )
    mean, std = channel_statistics(train.images)
    return ImageDataset(name, classes, train, valid, test, mean, std, augment=name in cifar.CIFAR)


def _digits() -> tuple[tuple[str, ...], Images]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DatasetError("the digits come with scikit-learn: pip install probattn[digits]") from error
    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # load_digits counts 0..16
    images = Images(torch.from_numpy(pixels)[:, None], torch.from_numpy(bunch.target).long())
    return tuple(map(str, bunch.target_names)), images
