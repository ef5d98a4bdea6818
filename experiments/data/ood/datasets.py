"""Out-of-distribution (OOD) image sets, on which a network should be uncertain."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from probattn.experiments.data.images import cifar
from probattn.experiments.data.images.files import open_image, to_channels
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.ood import downloads, generated
from probattn.experiments.data.root import data_root

NAMES = ("svhn", *cifar.CIFAR, *downloads.ARCHIVES, "letters", "patches")
"""The names of :func:`load`."""
_DEFAULTS = {
    "digits": ("letters", "patches"),
    "cifar10": ("svhn", "cifar100", "lsun-crop", "lsun-resize", "textures", "tinyimagenet-crop"),
    "cifar100": ("svhn", "cifar10", "lsun-crop", "lsun-resize", "textures", "tinyimagenet-crop"),
}


def default_names(in_distribution: str) -> tuple[str, ...]:
    """Return the names of the default OOD sets for a network trained on ``in_distribution``.

    Those of digits need no download. Those of CIFAR are the sets of the KEP-SVGP (Table 3) and CGP (Table III) papers
    that can be downloaded.

    Raises:
        ValueError: a data set without default sets.
    """
    if in_distribution not in _DEFAULTS:
        raise ValueError(f"no default OOD sets for {in_distribution!r}: name some of {', '.join(NAMES)}")
    return _DEFAULTS[in_distribution]


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    size: int,
    channels: int,
    in_distribution: str,
    limit: int | None = None,
    seed: int = 0,
) -> Images:
    """Load an OOD set, converted to the size and channels that a network expects; all labels are −1.

    ``svhn``, ``cifar10`` and ``cifar100`` are the test parts. ``lsun`` are LSUN's own test images, exported to
    ``<root>/lsun-test``; the other sets of LSUN, ``textures`` (DTD) and ``tinyimagenet-crop`` are those of
    pytorch-ood, unpacked under ``root`` as it does. ``letters`` and ``patches`` are generated. Images of any shape are
    resized to a square (bilinear, antialiased); colour is converted to grey and grey to colour, and transparency is
    dropped.

    Args:
        name: one of :data:`NAMES`, or the path of a folder with images at any depth, such as ``./photos``.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        size: height and width, in pixels.
        channels: 1 (grey) or 3 (red, green, blue).
        in_distribution: name of the data set that the network was trained on.
        limit: keep at most this many images. A smaller limit keeps a subset of what a larger limit keeps.
        seed: seed of the images that ``limit`` keeps and of the generated sets.

    Raises:
        ValueError: an unknown name, the name of ``in_distribution``, or an impossible size, channels or limit.
        DatasetError: images are missing, incomplete or damaged. Nothing is ever deleted.
    """
    if name == in_distribution:
        raise ValueError(f"the network was trained on {name}: name an OOD set")
    if channels not in (1, 3):
        raise ValueError(f"OOD images have 1 or 3 channels, the network expects {channels}")
    if size < 1 or (limit is not None and limit < 1):
        raise ValueError(f"size and limit must be at least 1, got {size} and {limit}")
    sources = _sources(name, data_root(root), size, seed)
    order = torch.randperm(len(sources), generator=torch.Generator().manual_seed(seed))
    chosen = order[:limit].sort().values.tolist()
    with ThreadPoolExecutor(4) as pool:  # hides the latency of opening many small files
        pixels = np.stack(list(pool.map(lambda index: _pixels(sources[index], size, channels), chosen)))
    return Images(torch.from_numpy(pixels), torch.full((len(pixels),), -1))


def _sources(name: str, root: Path, size: int, seed: int) -> Sequence[Path | np.ndarray]:
    """Return image files, or pixels (h, w) or (h, w, 3)."""
    if name == "svhn":
        return downloads.svhn(root)
    if name in cifar.CIFAR:
        return cifar.read(name, root)[2].images.permute(0, 2, 3, 1).numpy()
    if name in downloads.ARCHIVES:
        return downloads.archive_files(name, root)
    if name == "letters":
        return generated.letters(size=size, seed=seed)
    if name == "patches":
        return generated.patches(seed=seed)
    if "/" in name or os.sep in name or name.startswith((".", "~")):
        return downloads.find_images(Path(name).expanduser())
    near = get_close_matches(name, NAMES, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    folder = f"./{name}" if Path(name).is_dir() else "./photos"
    raise ValueError(f"unknown OOD set {name!r}; {hint}known: {', '.join(NAMES)}, or a folder's path such as {folder}")


def _pixels(source: Path | np.ndarray, size: int, channels: int) -> np.ndarray:
    """Return an image as uint8 (channels, size, size)."""
    if isinstance(source, np.ndarray):
        return _convert(Image.fromarray(source), size, channels)
    with open_image(source) as image:
        return _convert(image, size, channels)


def _convert(image: Image.Image, size: int, channels: int) -> np.ndarray:
    image = to_channels(image, channels).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1)
