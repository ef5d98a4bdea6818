"""Images in folders, one for each class."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import SUFFIXES, find_files, is_hidden, is_image, open_image, pixels
from probattn.experiments.data.images.labelled_images import Images, channel_statistics
from probattn.experiments.data.own.examples import (
    Examples,
    Shares,
    class_indices,
    class_names,
    divide,
    find_parts,
)


class ImageParts(NamedTuple):
    """Classes, and images of the three parts."""

    classes: tuple[str, ...]
    train: Images
    valid: Images
    test: Images


def read(path: Path, *, image_size: int, shares: Shares, seed: int, limit: int | None) -> ImageParts:
    """Read ``PATH/train/CLASS/*.jpg``, with ``valid`` and ``test`` if they are there, or ``PATH/CLASS/*.jpg``.

    All folders below that of a class belong to it, as for torchvision's ``ImageFolder``; hidden files are left out.

    Args:
        path: the folder.
        image_size: height and width (see :func:`~probattn.experiments.data.images.files.pixels`).
        shares, seed, limit: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: a class without images, a file that is no image, cannot be decoded, or lies outside of the
            classes' folders; names the file.
    """
    if not path.is_dir():
        raise DatasetError(f"{path} is no folder; name your folder of images with --data FOLDER")
    folders = {each.name.lower(): each for each in sorted(path.iterdir()) if each.is_dir()}
    parts = find_parts(folders)
    parts = parts if "train" in parts else {"train": path}
    given = {part: _list(folder) for part, folder in parts.items()}
    return from_examples(given, decode=lambda file: _decode(file, image_size), shares=shares, seed=seed, limit=limit)


def from_examples(
    given: dict[str, Examples],
    *,
    decode: Callable[[object], np.ndarray],
    shares: Shares,
    seed: int,
    limit: int | None,
) -> ImageParts:
    """Return the parts of examples, whose inputs are decoded by threads; arguments and errors as for :func:`read`."""
    parts = divide(given, shares=shares, seed=seed, limit=limit, by_class=True)
    classes = class_names(parts["train"])
    labels = {name: class_indices(each, classes) for name, each in parts.items()}
    with ThreadPoolExecutor(4) as pool:
        images = {
            name: Images(torch.from_numpy(np.stack(list(pool.map(decode, each.inputs)))), labels[name])
            for name, each in parts.items()
        }
    _, std = channel_statistics(images["train"].images)
    if min(std) == 0:
        raise DatasetError(
            "in one colour channel all training images have the same value everywhere: take other images"
        )
    return ImageParts(classes, **images)


def _list(folder: Path) -> Examples:
    """Return the images of each class's folder, whose inputs are paths."""
    entries = [each for each in sorted(folder.iterdir()) if not is_hidden(each.name)]
    outside = next((each for each in entries if not each.is_dir()), None)
    if outside is not None:
        raise DatasetError(f"{outside} lies outside of the classes' folders: move it into one, or elsewhere")
    if not entries:
        raise DatasetError(f"{folder} has no folders; it needs one for each class, with the images of that class")
    files, labels = [], []
    for each in entries:
        own = _files(each)
        if not own:
            raise DatasetError(f"the class {each.name!r} has no images: {each} is empty; add some or remove the folder")
        files += own
        labels += [each.name] * len(own)
    return Examples(files, labels, [str(file) for file in files])


def _files(folder: Path) -> Sequence[Path]:
    found = list(find_files(folder))
    other = next((each for each in found if not is_image(each.name)), None)
    if other is not None:
        raise DatasetError(
            f"{other} has none of the suffixes of images ({', '.join(SUFFIXES)}); convert it, or move it elsewhere"
        )
    return found


def _decode(path: Path, size: int) -> np.ndarray:
    with open_image(path) as image:
        return pixels(image, (3, size, size))
