"""Out-of-distribution (OOD) image sets, on which a network should be uncertain: stored, of a folder, or generated."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import SVHN
from torchvision.datasets.utils import download_and_extract_archive

from probattn.experiments.data.dataset import Root, data_root
from probattn.experiments.data.errors import DatasetError, unknown_name
from probattn.experiments.data.images import ood_generated
from probattn.experiments.data.images.files import check_number, decode_all, find_files, is_image, pixels, read_pixels
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.images.known_sets import CIFAR, downloading, read_cifar
from probattn.inference.imports import extra

# Folder under the root, number of images, and the class of pytorch-ood that downloads them, by name.
ARCHIVES = {
    "lsun": ("lsun-test", 10_000, None),
    "lsun-crop": ("LSUN/test", 10_000, "LSUNCrop"),
    "lsun-resize": ("LSUN_resize/LSUN_resize", 10_000, "LSUNResize"),
    "textures": ("dtd/images", 5_640, "Textures"),
    "tinyimagenet-crop": ("Imagenet/test", 10_000, "TinyImageNetCrop"),
}
NAMES = ("svhn", *CIFAR, *ARCHIVES, "letters", "patches")  # of :func:`load`


def default_names(in_distribution: str) -> tuple[str, ...]:
    """Return the names of the default OOD sets for a network trained on the data set ``in_distribution``.

    Those of CIFAR are the sets of the KEP-SVGP (Table 3) and CGP (Table III) papers that can be downloaded; those of
    digits and other images need no download.
    """
    if in_distribution not in CIFAR:
        return "letters", "patches"
    (other,) = CIFAR.keys() - {in_distribution}
    return "svhn", other, *(name for name, (*_, source) in ARCHIVES.items() if source)


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
        return _archive(root, *ARCHIVES[name])
    if name == "letters":
        return ood_generated.letters(size=size)
    if name == "patches":
        return ood_generated.patches()
    if name == "svhn":
        folder = (root / "svhn").absolute()
        with downloading("SVHN", folder, SVHN.split_list["test"][0]):
            return SVHN(folder, split="test", download=True).data.transpose(0, 2, 3, 1)
    if name in CIFAR:
        return read_cifar(name, root)[2].images.permute(0, 2, 3, 1).numpy()
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ValueError(unknown_name("OOD set", name, NAMES, listing="or name a folder of images, such as ./photos"))
    return _find_images(folder)


def _archive(root: Path, place: str, number: int, source: str | None) -> list[Path]:
    """Return the image files of an archive, downloaded and extracted if its folder is missing."""
    folder = root / place
    if not folder.is_dir() and source:
        with extra("ood", needed_by=f"the download of images that are not in {folder.absolute()}"):
            from pytorch_ood.dataset import img
        archive = getattr(img, source)
        with downloading(source, f"{folder.absolute()} or {archive.filename}", archive.url):
            download_and_extract_archive(archive.url, root, filename=archive.filename, md5=archive.tgz_md5)
    images = _find_images(folder)
    check_number(folder, len(images), number)
    return images


def _find_images(folder: Path) -> list[Path]:
    """Return the images of a folder at any depth, sorted by their paths."""
    images = sorted(file for file in find_files(folder) if is_image(file.name))
    if not images:
        raise DatasetError(f"{folder.absolute()} holds no image")
    return images
