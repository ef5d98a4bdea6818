"""Images in folders, one for each class."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import decode_all, find_files, is_hidden, is_image, path_text, read_pixels
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.own.examples import (
    Examples,
    class_indices,
    class_names,
    divide,
    find_parts,
    normal_name,
    shorten,
)


class ImageParts(NamedTuple):
    """Classes, and images of the three parts."""

    classes: tuple[str, ...]
    train: Images
    valid: Images
    test: Images


def read(path: Path, *, image_size: int, background: str = "white", **division: Any) -> ImageParts:
    """Read ``PATH/train/CLASS/*.jpg``, with ``valid`` and ``test`` if they are there, or ``PATH/CLASS/*.jpg``.

    Parts have any of the names of :data:`~probattn.experiments.data.own.examples.PARTS`. All folders below that of a
    class belong to it, as for torchvision's ``ImageFolder``; hidden files are left out.

    Args:
        path: the folder.
        image_size, background: size and colour (see :func:`~probattn.experiments.data.images.files.pixels`).
        division: ``shares``, ``seed`` and ``limit`` as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: a class without images; a file that is no image, cannot be decoded, or lies outside of the
            classes' folders; folders that may be parts or classes.
    """
    if not path.is_dir():
        raise DatasetError(f"{path} is no folder; name your folder of images with --data FOLDER")
    decode = partial(read_pixels, shape=(3, image_size, image_size), background=background)
    given = {part: list_images(folder) for part, folder in _part_folders(path).items()}
    return from_examples(given, decode=decode, **division)


def from_examples(given: dict[str, Examples], *, decode: Callable[[object], np.ndarray], **division: Any) -> ImageParts:
    """Return the parts of examples, whose inputs are decoded by threads; arguments and errors as for :func:`read`."""
    parts = divide(given, by_class=True, **division)
    classes = class_names(parts["train"])
    labels = {part: class_indices(examples, classes) for part, examples in parts.items()}
    images = {part: Images(decode_all(decode, parts[part].inputs), labels[part]) for part in parts}
    return ImageParts(classes, **images)


def _part_folders(path: Path) -> dict[str, Path]:
    """Return the folders of the parts; without any, the folder itself is the training part."""
    folders = _folders(path)
    parts = find_parts(folders)
    names = [folder.name for folder in parts.values()]
    others = [name for name in folders if name not in names]
    if parts and (others or "train" not in parts):
        raise DatasetError(
            f"{path} has the folders {shorten(names)}, which are named like parts, and "
            f"{f'beside them {shorten(others)}' if others else 'no training part'}: move the folders of classes for "
            "training into one named train, and what is neither a part nor a class elsewhere"
        )
    return parts or {"train": path}


def _folders(path: Path) -> dict[str, Path]:
    return {entry.name: entry for entry in sorted(path.iterdir()) if entry.is_dir() and not is_hidden(entry.name)}


def list_images(folder: Path) -> Examples:
    """Return the images of each class's folder, whose inputs are paths."""
    files = list(find_files(folder))
    for file in files:
        if file.parent == folder or not is_image(file.name):
            problem = "is in no class's folder" if file.parent == folder else "has no suffix of an image"
            raise DatasetError(f"{path_text(file)} {problem}: move it elsewhere")
    names = [file.relative_to(folder).parts[0] for file in files]
    empty = _folders(folder).keys() - set(names)
    if empty or not names:
        problem = f"of the classes {shorten(sorted(empty))} are empty" if empty else "of classes are missing"
        raise DatasetError(f"in {folder} the folders {problem}: add images of each class, or remove its folder")
    return Examples(files, [normal_name(name) for name in names], [path_text(file) for file in files])
