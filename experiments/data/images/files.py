"""Image files: formats that are read, listing and decoding."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

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
