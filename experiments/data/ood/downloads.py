"""Out-of-distribution (OOD) sets on disk or by download: SVHN's own file, extracted archives, folders of images."""

from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torchvision.datasets import SVHN

from probattn.experiments.data.download import check_folder, download_and_extract
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import SUFFIXES, find_files, is_image
from probattn.inference.imports import extra

_ELSEWHERE = "give another folder with --data or the environment variable PROBATTN_DATA"


class Archive(NamedTuple):
    """An image set that comes as an archive: title, extracted folder, number of images and class of pytorch-ood."""

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
    """Return the test part of SVHN (Netzer et al., 2011), uint8 (26032, 32, 32, 3), downloaded if it is missing.

    Raises:
        DatasetError: it is damaged, or missing and cannot be downloaded.
    """
    url, name, _ = SVHN.split_list["test"]
    folders = (root / "svhn", root)
    home = next((folder for folder in folders if (folder / name).is_file()), None)
    try:
        if home is None:
            check_folder(root)
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


def archive_files(name: str, root: Path) -> list[Path]:
    """Return the image files of one of :data:`ARCHIVES`, downloaded and extracted under ``root`` if they are missing.

    An archive in ``root`` is extracted without a network. LSUN's own test images have no archive of images: export
    them from its database with its authors' script.

    Raises:
        DatasetError: some images are missing, or all are and cannot be downloaded.
    """
    archive = ARCHIVES[name]
    folder = root / archive.folder
    if not folder.is_dir():
        _download(archive, root)
    files = find_images(folder)
    if len(files) < archive.num_images:
        raise DatasetError(
            f"{folder.absolute()} is not a complete {archive.title}: it holds {len(files):,} images, expected "
            f"{archive.num_images:,}. Remove it and unpack it again, or {_ELSEWHERE}."
        )
    return files


def _download(archive: Archive, root: Path) -> None:
    absent = f"{archive.title} is not in {root.absolute()}. Looked for images in {(root / archive.folder).absolute()}"
    if archive.source is None:
        raise DatasetError(
            f"{absent}. Export the test images there from LSUN's database "
            f"(https://github.com/fyu/lsun: data.py export test_lmdb --out_dir …), or {_ELSEWHERE}."
        )
    with extra("ood", needed_by=f"{absent}; unpack them there, or {_ELSEWHERE}. Their download"):
        from pytorch_ood.dataset import img
    source = getattr(img, archive.source)
    try:
        download_and_extract(source.url, root, filename=source.filename, md5=source.tgz_md5)
    except (OSError, RuntimeError, HTTPException) as error:
        raise DatasetError(
            f"{absent}, then for {source.filename} in {root.absolute()}. The download failed: {error}. "
            f"Put {source.url} there under that name, {_ELSEWHERE}, or run once with a network."
        ) from error


def find_images(folder: Path) -> list[Path]:
    """Return the images under ``folder`` at any depth, sorted by path, without hidden files and folders.

    Raises:
        DatasetError: the folder is missing or holds no image.
    """
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise DatasetError(f"{folder.absolute()} {problem}: give a folder of images")
    files = sorted(each for each in find_files(folder) if is_image(each.name))
    if not files:
        raise DatasetError(f"{folder.absolute()} holds no image ({', '.join(SUFFIXES)})")
    return files
