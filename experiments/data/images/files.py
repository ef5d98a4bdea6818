"""Image files: formats that are read, decoding, and conversion to arrays of one size."""

import logging
import mimetypes
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from probattn.experiments.data.errors import DatasetError

# Pillow's formats that are read; of others, Pillow runs PostScript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
# An image with less contrast cannot be seen, unless it is opaque but for its corners.
_MIN_CONTRAST = 16
_OPAQUE = 0.9
_log = logging.getLogger(__name__)


def is_hidden(name: str) -> bool:
    """Return True for names of hidden files and folders, and of those that Windows puts into
    folders of images."""
    return name.startswith(".") or name.lower() in ("thumbs.db", "desktop.ini")


def find_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in order, without hidden ones; linked folders are read,
    too."""
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        yield from (Path(place, name) for name in sorted(files) if not is_hidden(name))


def is_image(path: Path) -> bool:
    """Return True for a file that is named like an image, or is one of :data:`FORMATS`."""
    kind = mimetypes.guess_type(path_text(path))[0] or ""
    if kind.startswith("image/") or not path.is_file():
        return True
    try:
        Image.open(path, formats=FORMATS).close()
    except Exception as error:  # of many types; decoding the image raises one of ours
        return not isinstance(error, UnidentifiedImageError)
    return True


def check_number(folder: Path, number: int, expected: int) -> None:
    """Raise DatasetError unless the number of a folder's images is the expected one."""
    if number != expected:
        raise DatasetError(
            f"{folder.absolute()} holds {number:,} of {expected:,} images: give its complete folder"
        )


def path_text(path: Path) -> str:
    """Return a path as text that can be printed and stored, also where its name is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def read_pixels(source: Path | BytesIO, shape: tuple[int, int, int], **options: Any) -> np.ndarray:
    """Return the pixels of an image of one of :data:`FORMATS`, of a file with any suffix.

    Args:
        source: a file, or the content of one with its ``name`` for messages.
        shape, options: as for :func:`pixels`.

    Raises:
        DatasetError: it cannot be decoded, or is not a regular file: reading from a pipe would
            never end.
    """
    try:
        if isinstance(source, Path) and not source.is_file():
            raise OSError("it is no regular file")
        with Image.open(source, formats=FORMATS) as image:
            return pixels(image, shape, **options)
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:  # a broken PNG: SyntaxError
        place = path_text(source.absolute()) if isinstance(source, Path) else source.name
        is_other = isinstance(error, UnidentifiedImageError)
        reason = f"it is none of {', '.join(FORMATS)}" if is_other else error
        raise DatasetError(f"cannot read {place}: {reason}; repair or remove the file") from error


def decode_all(decode: Callable[[Any], np.ndarray], sources: Iterable[Any]) -> torch.Tensor:
    """Return uint8 images (n, C, H, W) of the sources; threads hide the latency of opening many
    small files."""
    with ThreadPoolExecutor(4) as pool:
        return torch.from_numpy(np.stack(list(pool.map(decode, sources))))


def pixels(
    image: Image.Image, shape: tuple[int, int, int], *, background: str = "white", crop: bool = True
) -> np.ndarray:
    """Return an image as uint8 (C, H, W), H = W, upright as its EXIF orientation says.

    Args:
        image: opened and not decoded yet.
        shape: C, 1 for grey or 3 for RGB; H and W.
        background: colour that transparent images stand on, such as ``white`` or ``#808080``.
        crop: scale the shorter side to the size and crop the middle; otherwise scale both sides.

    Raises:
        ValueError: more than 8 bits and no range of levels, or nothing to be seen on the
            background.
    """
    channels, size, _ = shape
    opaque = _compose(image, background).convert("RGB" if channels == 3 else "L")
    resize = ImageOps.fit if crop else Image.Image.resize
    resized = resize(opaque, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(resized).reshape(size, size, channels).transpose(2, 0, 1).copy()


def _compose(image: Image.Image, background: str) -> Image.Image:
    """Return the upright image without transparency, which may be that of a channel, a palette or a
    single colour."""
    if image.mode.startswith(("I", "F")):  # Pillow would keep the lowest 256 levels only
        return _to_8_bits(ImageOps.exif_transpose(image))
    if image.format == "PNG" and "transparency" in image.info:
        layout = cast(Any, image).tile[0].args
        image.info["transparency"] = _transparent_colour(image.info["transparency"], layout=layout)
    upright = ImageOps.exif_transpose(image)
    if not upright.has_transparency_data:
        return upright
    layers = upright.convert("RGBA")
    composed = Image.alpha_composite(Image.new("RGBA", layers.size, background), layers).convert(
        "RGB"
    )
    alpha = np.asarray(layers.getchannel("A"))
    has_shape = alpha.min() < alpha.max() and alpha.mean() < 255 * _OPAQUE
    contrast = np.ptp(np.asarray(composed), axis=(0, 1)).max()
    if has_shape and contrast < _MIN_CONTRAST:
        raise ValueError(
            f"it is transparent and cannot be seen on {background}: set another "
            "data.background=COLOUR"
        )
    return composed


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Return a grey image with 8 bits, from its darkest to its brightest level."""
    levels = np.asarray(image, dtype=np.float64)
    if not np.isfinite(levels).all():
        raise ValueError("it has more than 8 bits, and a level that is no number")
    extent = np.ptp(levels) or 1.0
    _log.info(
        "grey images of more than 8 bits: each is scaled from its darkest to its brightest level"
    )
    return Image.fromarray((255 * (levels - levels.min()) / extent).round().astype(np.uint8))


def _transparent_colour(colour: Any, *, layout: str) -> Any:
    """Return the transparent colour of a PNG file in 8 bits; Pillow scales the pixels, but not this
    colour."""
    if layout == "RGB;16B":
        return tuple(level >> 8 for level in colour)
    return colour * {"L;2": 85, "L;4": 17}.get(layout, 1)
