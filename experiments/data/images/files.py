"""Image files: formats that are read, decoding, and conversion to arrays of one size."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from probattn.experiments.data.errors import DatasetError

FORMATS = {
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".pgm", ".ppm"),
}
"""Pillow's formats that are read, with the suffixes of their files; of others, Pillow runs PostScript."""
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)

_CLUTTER = {"thumbs.db", "desktop.ini"}
"""Files that Windows puts into folders of images."""


def is_hidden(name: str) -> bool:
    """Return True for names of hidden files and folders, and of those that Windows puts into folders of images."""
    return name.startswith(".") or name.lower() in _CLUTTER


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in order, without hidden ones; linked folders are read, too.

    Raises:
        DatasetError: links that lead in a circle.
    """
    for name, folders, files in os.walk(folder, followlinks=True):
        place = Path(name)
        above = {each.resolve() for each in (place, *place.parents)}
        folders[:] = sorted(each for each in folders if not is_hidden(each))
        for each in folders:
            if (place / each).resolve() in above:
                raise DatasetError(f"{place / each} is a link to a folder that it is in; remove it")
        yield from (place / each for each in sorted(files) if not is_hidden(each))


def is_image(name: str) -> bool:
    """Return True for the name of an image file that is not hidden."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


@contextlib.contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image file of one of :data:`FORMATS` with any suffix; it is decoded inside the context.

    Raises:
        DatasetError: the file cannot be decoded, or is not a regular file: reading from a pipe would never end.
    """
    if not path.is_file():
        kind = "not a regular file" if path.exists() else "a link to nothing"
        raise DatasetError(f"{path.absolute()} is {kind}; put an image there or remove it")
    try:
        with Image.open(path, formats=tuple(FORMATS)) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # a broken PNG: SyntaxError
        raise DatasetError(
            f"cannot decode {path.absolute()}: {error}; put an intact copy there or remove it"
        ) from error


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """Convert an image to RGB (3 channels) or grey (1 channel).

    Raises:
        ValueError: more than 8 bits per channel, of which Pillow would keep the lowest 256 levels only.
    """
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"it has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits")
    if image.mode == "P":
        image = image.convert("RGBA")  # Pillow warns if a palette with transparency is converted directly
    return image.convert("RGB" if channels == 3 else "L")


def pixels(image: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Return an image as uint8 (C, H, W), H = W: its shorter side is scaled to the size, its middle cropped.

    Raises:
        ValueError: more than 8 bits per channel.
    """
    channels, size, _ = shape
    scale = size / min(image.size)
    width, height = (max(size, round(scale * length)) for length in image.size)
    resized = to_channels(image, channels).resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    cropped = np.asarray(resized.crop((left, top, left + size, top + size)))
    return cropped.reshape(size, size, channels).transpose(2, 0, 1).copy()
