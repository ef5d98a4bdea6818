"""Data sets of images known by name: handwritten digits, CIFAR-10 and CIFAR-100.

CIFAR is read from torchvision's files, or else from
``{cifar10,cifar100}-jpeg/{train,test}/CLASS/*``, both under the root folder.
"""

import contextlib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets import CIFAR10, CIFAR100

from probattn.experiments.data.dataset import Root, data_root
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import check_number
from probattn.experiments.data.images.image_datasets import ImageDataset, Images, from_parts
from probattn.experiments.data.own.images import read

CIFAR = {
    "cifar10": ("CIFAR-10", CIFAR10),
    "cifar100": ("CIFAR-100", CIFAR100),
}  # titles and torchvision's classes
CIFAR_SIZES = {"train": 50_000, "test": 10_000}
NAMES = ("digits", *CIFAR)  # of :func:`load`


def load(name: str, *, root: Root = None, seed: int = 0, limit: int | None = None) -> ImageDataset:
    """Load an image data set and split off its validation part, stratified by class.

    ``digits`` (8×8, grey, from scikit-learn) is split 60/20/20. CIFAR has a test part of its own;
    one tenth of its training part becomes the validation part.

    Args:
        name: one of :data:`NAMES`.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        seed, limit: as for :func:`~probattn.experiments.data.dataset.Part.divide`.

    Raises:
        DatasetError: the data are missing, incomplete or damaged.
    """
    folder = data_root(root)
    classes, train, *test = _read_digits() if name == "digits" else read_cifar(name, folder)
    sizes = [len(train) // 10] if test else [round(len(train) / 5)] * 2
    parts = train.divide(*test, sizes=sizes, classes=len(classes), seed=seed, limit=limit)
    return from_parts(name, classes, *parts, augment=name in CIFAR)


def read_cifar(name: str, root: Path) -> tuple[tuple[str, ...], Images, Images]:
    """Return class names, training and test part.

    Raises:
        DatasetError: the data are incomplete, or missing and cannot be downloaded.
    """
    title, source = CIFAR[name]
    files = root / source.base_folder
    folder = root / f"{name}-jpeg"
    if folder.is_dir() and not files.is_dir():
        classes, *parts = read(folder, shares={}, seed=0, limit=None)
        for (role, number), images in zip(CIFAR_SIZES.items(), parts, strict=True):
            check_number(folder / role, len(images), number)
        return classes, *parts
    with downloading(title, f"{files.absolute()} or {folder.name}", source.url):
        parts = [source(root, train=train, download=True) for train in (True, False)]
    images = (torch.from_numpy(stored.data).permute(0, 3, 1, 2).contiguous() for stored in parts)
    train, test = map(Images, images, (torch.tensor(stored.targets) for stored in parts))
    return tuple(parts[0].classes), train, test


@contextlib.contextmanager
def downloading(title: str, place: object, url: str) -> Iterator[None]:
    """Turn the errors of a download into a DatasetError that names the place and the source of the
    data."""
    try:
        yield
    except (OSError, RuntimeError, HTTPException) as error:
        problem = f"{title} is not in {place}, and its download failed: {error}"
        raise DatasetError(f"{problem}. Put {url} there, or name its folder with --data") from error


def _read_digits() -> tuple[tuple[str, ...], Images]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    levels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # from 0..16
    images = Images(torch.from_numpy(levels)[:, None], torch.from_numpy(bunch.target).long())
    return tuple(map(str, bunch.target_names)), images
