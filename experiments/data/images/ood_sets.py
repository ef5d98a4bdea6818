"""Out-of-distribution (OOD) image sets, on which a network should be uncertain: stored, of a folder, or generated."""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import SVHN
from torchvision.datasets.utils import download_and_extract_archive

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import cifar, ood_generated
from probattn.experiments.data.images.files import decode_all, find_files, is_image, pixels, read_pixels
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.root import Root, data_root
from probattn.inference.imports import extra


class Archive(NamedTuple):
    """Folder under the root, number of images, and the class of pytorch-ood that names the archive."""

    folder: str
    num_images: int
    source: str | None


ARCHIVES = {
    "lsun": Archive("lsun-test", 10_000, None),
    "lsun-crop": Archive("LSUN/test", 10_000, "LSUNCrop"),
    "lsun-resize": Archive("LSUN_resize/LSUN_resize", 10_000, "LSUNResize"),
    "textures": Archive("dtd/images", 5_640, "Textures"),
    "tinyimagenet-crop": Archive("Imagenet/test", 10_000, "TinyImageNetCrop"),
}
NAMES = ("svhn", *cifar.CIFAR, *ARCHIVES, "letters", "patches")  # of :func:`load`


def default_names(in_distribution: str) -> tuple[str, ...]:
    """Return the names of the default OOD sets for a network trained on the data set ``in_distribution``.

    Those of CIFAR are the sets of the KEP-SVGP (Table 3) and CGP (Table III) papers that can be downloaded; those of
    digits and other images need no download.
    """
    if in_distribution not in cifar.CIFAR:
        return "letters", "patches"
    (other,) = cifar.CIFAR.keys() - {in_distribution}
    return "svhn", other, *(name for name, archive in ARCHIVES.items() if archive.source)


def load(
    name: str, *, root: Root = None, size: int, channels: int, in_distribution: str, limit: int | None = None
) -> Images:
    """Load an OOD set, converted to the size and channels that a network expects; all labels are −1.

    ``svhn``, ``cifar10`` and ``cifar100`` are the test parts. ``lsun`` are LSUN's own test images, exported by its
    authors' script to ``<root>/lsun-test``. The other sets of LSUN, ``textures`` (DTD) and ``tinyimagenet-crop`` are
    those of pytorch-ood, unpacked under ``root`` as it does. ``letters`` and ``patches`` are generated. Images of any
    shape are resized to a square (bilinear, antialiased); colour is converted to grey and grey to colour, and
    transparent images stand on white.

    Args:
        name: one of :data:`NAMES`, or the path of a folder with images at any depth, such as ``./photos``.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        size: height and width, in pixels.
        channels: 1 (grey) or 3 (red, green, blue).
        in_distribution: name of the data set that the network was trained on.
        limit: read at most this many images.

    Raises:
        ValueError: an unknown name, or the name of ``in_distribution``.
        DatasetError: images are missing, incomplete or damaged.
    """
    if name == in_distribution:
        raise ValueError(f"the network was trained on {name}: name an OOD set")

    def decode(source: Path | np.ndarray) -> np.ndarray:
        read, source = (read_pixels, source) if isinstance(source, Path) else (pixels, Image.fromarray(source))
        return read(source, (channels, size, size), crop=False)

    images = decode_all(decode, islice(_sources(name, data_root(root), size), limit))
    return Images(images, torch.full((len(images),), -1))


def _sources(name: str, root: Path, size: int) -> Iterable[Path | np.ndarray]:
    if name in ARCHIVES:
        return _archive(ARCHIVES[name], root)
    if name == "letters":
        return ood_generated.letters(size=size)
    if name == "patches":
        return ood_generated.patches()
    if name == "svhn":
        url, file, _ = SVHN.split_list["test"]
        folder = root if (root / file).is_file() else root / "svhn"
        with cifar.downloading("SVHN", folder.absolute(), url):
            return SVHN(folder, split="test", download=True).data.transpose(0, 2, 3, 1)
    if name in cifar.CIFAR:
        return cifar.read(name, root)[2].images.permute(0, 2, 3, 1).numpy()
    if "/" in name or os.sep in name or name.startswith((".", "~")):
        if not (folder := Path(name).expanduser()).is_dir():
            raise DatasetError(f"{name} is no folder of images")
        return _find_images(folder)
    near = get_close_matches(name, NAMES, n=3) or NAMES
    raise ValueError(f"unknown OOD set {name!r}: choose one of {', '.join(near)}, or a folder's path like ./photos")


def _archive(archive: Archive, root: Path) -> list[Path]:
    """Return the image files of an archive, downloaded and extracted if its folder is missing."""
    folder = root / archive.folder
    if not folder.is_dir() and archive.source:
        with extra("ood", needed_by=f"the download of images that are not in {folder.absolute()}"):
            from pytorch_ood.dataset import img
        source = getattr(img, archive.source)
        with cifar.downloading(archive.source, f"{folder.absolute()} or {source.filename}", source.url):
            download_and_extract_archive(source.url, root, filename=source.filename, md5=source.tgz_md5)
    return _find_images(folder, number=archive.num_images)


def _find_images(folder: Path, *, number: int = 1) -> list[Path]:
    files = sorted(file for file in find_files(folder) if is_image(file.name))
    if not files:
        raise DatasetError(f"{folder.absolute()} holds no image")
    if len(files) < number:
        raise DatasetError(f"{folder.absolute()} holds {len(files):,} of {number:,} images: give its complete folder")
    return files
