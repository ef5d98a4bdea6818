"""Image data sets as uint8 tensors: handwritten digits, CIFAR-10 and CIFAR-100, or parts of any origin."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from probattn.experiments.data.batch_loader import ImageLoader
from probattn.experiments.data.dataset import Dataset
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import cifar
from probattn.experiments.data.images.labelled_images import Images, channel_statistics
from probattn.experiments.data.root import Root, data_root
from probattn.experiments.data.splits import split, subsample


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset):
    """An image data set.

    Attributes:
        mean, std: per channel, of the training images scaled to 0..1.
        augment: True if training images are cropped and flipped at random; False for digits.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool

    def training(self, **options: Any) -> ImageLoader:
        """Return the loader of training batches: in random order, augmented if :attr:`augment`."""
        return super().training(augment=self.augment, **options)

    def batches(self, images: Images, *, augment: bool = False, **options: Any) -> ImageLoader:
        """Return a loader of any images in their order, normalised as in training, not augmented.

        Raises:
            DatasetError: the images differ in size or number of channels from those of this data set.
        """
        expected, shape = tuple(self.test.images.shape[1:]), tuple(images.images.shape[1:])
        if shape != expected:
            raise DatasetError(f"the network was trained on images {expected}, these are {shape}")
        return ImageLoader(images.images, images.labels, mean=self.mean, std=self.std, augment=augment, **options)

    def preprocessing(self) -> dict[str, Any]:
        """Return the shape of the images and their normalisation."""
        return {"kind": "images", "shape": self.test.images.shape[1:], "mean": self.mean, "std": self.std}


NAMES = ("digits", *cifar.CIFAR)  # of :func:`load`


def load(name: str, *, root: Root = None, seed: int = 0, limit: int | None = None) -> ImageDataset:
    """Load an image data set and split off its validation part, stratified by class.

    ``digits`` (8×8, grey, from scikit-learn) is split 60/20/20. CIFAR has a test part of its own; one tenth of
    its training part becomes the validation part.

    Args:
        name: one of :data:`NAMES`.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        seed: seed of the splits only.
        limit: keep at most this many training images and the same fraction of the validation images, but at least one
            per class if there is one; the test part keeps its size. A smaller limit keeps a subset of what a larger
            limit keeps.

    Raises:
        ValueError: ``name`` is unknown.
        DatasetError: the data are missing, incomplete or damaged.
    """
    if name not in NAMES:
        raise ValueError(f"unknown image data set {name!r}: choose one of {', '.join(NAMES)}")
    folder, generator = data_root(root), torch.Generator().manual_seed(seed)
    if name == "digits":
        classes, whole = _digits()
        fifth = round(len(whole) / 5)
        train, valid, test = split(whole, sizes=(len(whole) - 2 * fifth, fifth, fifth), generator=generator)
    else:
        classes, whole, test = cifar.read(name, folder)
        tenth = len(whole) // 10
        train, valid = split(whole, sizes=(len(whole) - tenth, tenth), generator=generator)
    if limit is not None:
        train, valid = subsample(train, valid, limit=limit, num_classes=len(classes), generator=generator)
    return from_parts(name, classes, train, valid, test, augment=name in cifar.CIFAR)


def from_parts(name: str, classes: tuple[str, ...], *parts: Images, augment: bool) -> ImageDataset:
    """Return the data set of three parts, whose normalisation is that of the training part.

    Raises:
        DatasetError: a colour channel of all training images has one value everywhere.
    """
    mean, std = channel_statistics(parts[0].images)
    if min(std) < 1e-9:
        raise DatasetError("in one colour channel all training images have the same value everywhere: take others")
    return ImageDataset(name, classes, *parts, mean, std, augment=augment)


def _digits() -> tuple[tuple[str, ...], Images]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    levels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # from 0..16
    images = Images(torch.from_numpy(levels)[:, None], torch.from_numpy(bunch.target).long())
    return tuple(map(str, bunch.target_names)), images
