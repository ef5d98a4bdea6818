"""Where sets of foreign images lie: SVHN's own file, unpacked archives, folders of images."""

import os
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torchvision.datasets import SVHN

from probattn.experiments.data.download import fetch
from probattn.experiments.data.images.images import DatasetError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""What such a file may hold: of others, Pillow would hand PostScript to an interpreter."""
_ELSEWHERE = "give another folder with --data or the environment variable PROBATTN_DATA"


class Archive(NamedTuple):
    """A set of images as its archive unpacks: its folder, how many there are, and the class of pytorch-ood."""

    title: str
    folder: str
    num_images: int
    source: str | None


ARCHIVES = {
    "lsun": Archive("LSUN", "lsun-test", 10_000, None),
    "lsun-crop": Archive("LSUN-crop", "LSUN/test", 10_000, "LSUNCrop"),
    "lsun-resize": Archive("LSUN-resize", "LSUN_resize/LSUN_resize", 10_000, "LSUNResize"),
    "textures": Archive("Textures", "dtd/images", 5_640, "Textures"),
    "tinyimagenet-crop": Archive("TinyImageNet-crop", "Imagenet/test", 10_000, "TinyImageNetCrop"),
}


def svhn(root: Path) -> np.ndarray:
    """The test part of SVHN (Netzer et al., 2011), uint8 (26032, 32, 32, 3), downloaded where there is a network.

    Raises:
        DatasetError: it is damaged, or neither there nor to be had.
    """
    url, name, _ = SVHN.split_list["test"]
    folders = (root / "svhn", root)
    home = next((folder for folder in folders if (folder / name).is_file()), None)
    try:
        part = SVHN(home or folders[0], split="test", download=home is None)
    except (OSError, RuntimeError, HTTPException) as error:
        if home is not None:
            raise DatasetError(
                f"{(home / name).absolute()} is damaged: its MD5 sum is not SVHN's. Remove it and put {url} there."
            ) from error
        raise DatasetError(
            f"SVHN is not in {root.absolute()}. Looked for {name} in "
            f"{', '.join(str(folder.absolute()) for folder in folders)}. The download failed: {error}. "
            f"Put {url} there, {_ELSEWHERE}, or run once with a network."
        ) from error
    return part.data.transpose(0, 2, 3, 1)


def unpacked(name: str, root: Path) -> list[Path]:
    """The files of one of :data:`ARCHIVES`, which is fetched and unpacked under ``root`` where it is not yet.

    An archive that lies in ``root`` is unpacked without a network. LSUN's own test images have no archive of images:
    they are to be exported from its database, as its authors' script does.

    Raises:
        DatasetError: some images are missing, or all are and cannot be had.
    """
    archive = ARCHIVES[name]
    folder = root / archive.folder
    if not folder.is_dir():
        _fetch(archive, root)
    files = find_images(folder)
    if len(files) < archive.num_images:
        raise DatasetError(
            f"{folder.absolute()} is not a complete {archive.title}: it holds {len(files):,} images, expected "
            f"{archive.num_images:,}. Remove it and unpack it again, or {_ELSEWHERE}."
        )
    return files


def _fetch(archive: Archive, root: Path) -> None:
    absent = f"{archive.title} is not in {root.absolute()}. Looked for images in {(root / archive.folder).absolute()}"
    if archive.source is None:
        raise DatasetError(
            f"{absent}. Export the test images there from LSUN's database "
            f"(https://github.com/fyu/lsun: data.py export test_lmdb --out_dir …), or {_ELSEWHERE}."
        )
    try:
        from pytorch_ood.dataset import img
    except ImportError as error:
        raise DatasetError(
            f"{absent}. To download them, pip install probattn[ood]; else unpack them there, or {_ELSEWHERE}."
        ) from error
    source = getattr(img, archive.source)
    try:
        fetch(source.url, root, filename=source.filename, md5=source.tgz_md5)
    except (OSError, RuntimeError, HTTPException) as error:
        raise DatasetError(
            f"{absent}, then for {source.filename} in {root.absolute()}. The download failed: {error}. "
            f"Put {source.url} there under that name, {_ELSEWHERE}, or run once with a network."
        ) from error


def find_images(folder: Path) -> list[Path]:
    """The images under ``folder``, however deep, sorted by path; hidden files and folders are left out.

    Raises:
        DatasetError: no folder, or none with an image.
    """
    if not folder.is_dir():
        raise DatasetError(
            f"{folder.absolute()} is {'not a folder' if folder.exists() else 'not there'}: give a folder of images"
        )
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(place, name) for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    if not files:
        raise DatasetError(f"{folder.absolute()} holds no image ({', '.join(SUFFIXES)})")
    return sorted(files)
