"""The root folder of all data sets, and what it holds."""

import os
from pathlib import Path

from probattn.experiments.data.errors import DatasetError

DEFAULT = Path("data")
"""The folder that is used if neither an argument nor ``PROBATTN_DATA`` names another; downloads create it."""
PLACES = {
    "cola": ("cola_public/raw", "raw", "cola_public.zip", "cola_public_1.1.zip"),
    "imdb": ("aclImdb", "aclImdb.tar.xz", "aclImdb_v1.tar.gz"),
    "svhn": ("svhn/test_32x32.mat", "test_32x32.mat"),
    "cifar10": ("cifar-10-batches-py", "cifar10-jpeg/train", "cifar10/train"),
    "cifar100": ("cifar-100-python", "cifar100-jpeg/train", "cifar100/train"),
    "lsun": ("lsun-test",),
    "lsun-crop": ("LSUN/test",),
    "lsun-resize": ("LSUN_resize/LSUN_resize",),
    "textures": ("dtd/images",),
    "tinyimagenet-crop": ("Imagenet/test",),
}
"""Paths under the root folder, any of which holds a data set of files; others are installed or generated."""


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """Return the root folder of the data sets: ``root``, else ``$PROBATTN_DATA``, else :data:`DEFAULT`.

    Raises:
        DatasetError: it is a file.
    """
    folder = Path(root or os.environ.get("PROBATTN_DATA") or DEFAULT).expanduser()
    if folder.is_file():
        raise DatasetError(f"{folder} is a file; --data is the folder of the data sets for this preset")
    return folder


def missing(name: str, root: Path) -> str:
    """Return in words where a data set is looked for, without reading it; an empty text if it is there."""
    paths = PLACES.get(name)
    if paths is None or any((root / path).exists() for path in paths):
        return ""
    return f"{name} is not in {root.absolute()} ({', '.join(paths)})"
