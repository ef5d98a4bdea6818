"""CIFAR-10 and CIFAR-100 from torchvision's files, or from folders of images by class, which are decoded once.

The places under the root folder, in order: torchvision's files, then ``{cifar10-jpeg,cifar10,.}/{train,test}/CLASS/*``.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import torch
from torchvision.datasets import CIFAR10, CIFAR100

from probattn.experiments.data import cache
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import decode_all, read_pixels
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.own.examples import class_indices, class_names
from probattn.experiments.data.own.images import list_images


class CifarSpec(NamedTuple):
    """Title, torchvision class, and the number of classes, training and test images of a CIFAR data set."""

    title: str
    source: type[CIFAR10]
    num_classes: int
    num_train: int = 50_000
    num_test: int = 10_000


CIFAR = {"cifar10": CifarSpec("CIFAR-10", CIFAR10, 10), "cifar100": CifarSpec("CIFAR-100", CIFAR100, 100)}


@contextlib.contextmanager
def downloading(title: str, place: object, url: str) -> Iterator[None]:
    """Turn the errors of a download into a DatasetError that names the place and the source of the data."""
    try:
        yield
    except (OSError, RuntimeError, HTTPException) as error:
        problem = f"{title} is not in {place}, and its download failed: {error}"
        raise DatasetError(f"{problem}. Put {url} there, or name its folder with --data") from error


def read(name: str, root: Path) -> tuple[tuple[str, ...], Images, Images]:
    """Return class names, training and test part.

    Raises:
        DatasetError: the data are incomplete, or missing and cannot be downloaded.
    """
    spec, places = CIFAR[name], (f"{name}-jpeg", name, ".")
    files = root / spec.source.base_folder
    folders = [root / place for place in places if (root / place / "train").is_dir()]
    if folders and not files.is_dir():
        return _from_folders(spec, folders[0], cached=root / cache.FOLDER / f"{name}.pt")
    with downloading(spec.title, f"{files.absolute()}, {places[0]}/train or {name}/train", spec.source.url):
        parts = [spec.source(root, train=train, download=True) for train in (True, False)]
    images = (torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous() for part in parts)
    return tuple(parts[0].classes), *map(Images, images, (torch.tensor(part.targets) for part in parts))


def _from_folders(spec: CifarSpec, folder: Path, *, cached: Path) -> tuple[tuple[str, ...], Images, Images]:
    parts = [list_images(folder / part) for part in ("train", "test")]
    classes = class_names(parts[0].label)
    labels = [class_indices(part.label, classes) for part in parts]
    for part, size in zip(labels, (spec.num_train, spec.num_test), strict=True):
        counts = part.bincount(minlength=spec.num_classes).tolist()
        if counts != [size // spec.num_classes] * spec.num_classes:
            problem = f"{folder.absolute()} is not a complete {spec.title}: its classes have {counts} images"
            raise DatasetError(f"{problem}; unpack it again, or name another folder with --data")
    decode, folders = partial(read_pixels, shape=(3, 32, 32)), {file.parent for part in parts for file in part.input}
    images = cache.read_or_compute(
        cached, sources=sorted(folders), compute=lambda: [decode_all(decode, part.input) for part in parts]
    )
    return classes, *map(Images, images, labels)
