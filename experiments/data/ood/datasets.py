"""Sets of foreign images: what a network that was trained on one data set should be unsure about."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from probattn.experiments.data.images import cifar
from probattn.experiments.data.images.datasets import data_root
from probattn.experiments.data.images.images import DatasetError, Images
from probattn.experiments.data.ood import downloads, generated

NAMES = ("svhn", *cifar.CIFAR, *downloads.ARCHIVES, "letters", "patches")
"""The names :func:`outliers` knows."""
_DEFAULTS = {
    "digits": ("letters", "patches"),
    "cifar10": ("svhn", "cifar100", "lsun-crop", "lsun-resize", "textures", "tinyimagenet-crop"),
    "cifar100": ("svhn", "cifar10", "lsun-crop", "lsun-resize", "textures", "tinyimagenet-crop"),
}


def default(inside: str) -> tuple[str, ...]:
    """The sets to test a network with that was trained on ``inside``; those of digits need no download.

    Those of CIFAR are the ones of the KEP-SVGP (Table 3) and CGP (Table III) papers that can be downloaded.

    Raises:
        ValueError: a data set that has none.
    """
    if inside not in _DEFAULTS:
        raise ValueError(f"no default sets of foreign images for {inside!r}: name some of {', '.join(NAMES)}")
    return _DEFAULTS[inside]


def outliers(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    size: int,
    channels: int,
    inside: str,
    limit: int | None = None,
    seed: int = 0,
) -> Images:
    """Load a set of foreign images, in the size and colours that a network expects; their labels are all −1.

    ``svhn``, ``cifar10`` and ``cifar100`` are the test parts. ``lsun`` are LSUN's own test images, exported to
    ``<root>/lsun-test``; the other sets of LSUN, ``textures`` (DTD) and ``tinyimagenet-crop`` are those of
    pytorch-ood, unpacked under ``root`` as it does. ``letters`` and ``patches`` need no data. Pixels are resized to a
    square, bilinear and antialiased, whatever their shape; colours become grey, grey becomes colours, and transparency
    is dropped.

    Args:
        name: one of :data:`NAMES`, or the path of a folder with images anywhere under it, such as ``./photos``.
        root: folder to look for data in; default: ``$PROBATTN_DATA``, else ``data``.
        size: height and width, in pixels.
        channels: 1 (grey) or 3 (red, green, blue).
        inside: the data set that the network was trained on.
        limit: keep at most this many images. A smaller limit keeps a subset of what a larger one keeps.
        seed: fixes which images ``limit`` keeps, and how ``letters`` and ``patches`` are made.

    Raises:
        ValueError: an unknown name, ``inside`` itself, or numbers that make no images.
        DatasetError: data that are missing, incomplete or damaged. Nothing is ever deleted.
    """
    if name == inside:
        raise ValueError(f"{name} is what the network was trained on: name a set of foreign images")
    if channels not in (1, 3):
        raise ValueError(f"foreign images have 1 or 3 channels, the network expects {channels}")
    if size < 1 or (limit is not None and limit < 1):
        raise ValueError(f"size and limit must be at least 1, got {size} and {limit}")
    pictures = _pictures(name, data_root(root), size, seed)
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))
    chosen = order[:limit].sort().values.tolist()
    with ThreadPoolExecutor(4) as pool:  # hides the latency of opening many small files
        pixels = np.stack(list(pool.map(lambda index: _fit(pictures[index], size, channels), chosen)))
    return Images(torch.from_numpy(pixels), torch.full((len(pixels),), -1))


def _pictures(name: str, root: Path, size: int, seed: int) -> Sequence[Path | np.ndarray]:
    """Files of images, or pixels (h, w) or (h, w, 3)."""
    if name == "svhn":
        return downloads.svhn(root)
    if name in cifar.CIFAR:
        return cifar.read(name, root)[2].images.permute(0, 2, 3, 1).numpy()
    if name in downloads.ARCHIVES:
        return downloads.unpacked(name, root)
    if name == "letters":
        return generated.letters(size=size, seed=seed)
    if name == "patches":
        return generated.patches(seed=seed)
    if "/" in name or os.sep in name or name.startswith((".", "~")):
        return downloads.find_images(Path(name).expanduser())
    near = get_close_matches(name, NAMES, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    folder = f"./{name}" if Path(name).is_dir() else "./photos"
    raise ValueError(
        f"unknown set of foreign images {name!r}; {hint}known: {', '.join(NAMES)}, or a folder's path such as {folder}"
    )


def _fit(picture: Path | np.ndarray, size: int, channels: int) -> np.ndarray:
    """Pixels, uint8 (channels, size, size)."""
    if isinstance(picture, np.ndarray):
        return _resized(Image.fromarray(picture), size, channels)
    try:
        with Image.open(picture, formats=downloads.FORMATS) as image:
            return _resized(image, size, channels)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # a broken PNG: SyntaxError
        raise DatasetError(
            f"cannot decode {picture.absolute()}: {error}; put a sound copy there or remove it"
        ) from error


def _resized(image: Image.Image, size: int, channels: int) -> np.ndarray:
    if image.mode.startswith(("I", "F")):  # Pillow would clip them to white
        raise ValueError(f"its pixels have more than 8 bits (mode {image.mode})")
    if image.mode == "P":
        image = image.convert("RGBA")  # Pillow warns where a palette with transparency goes straight to RGB
    image = image.convert("RGB" if channels == 3 else "L").resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1)
