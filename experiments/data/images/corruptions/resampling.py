"""What moves pixels: the blurs, the zoom and the resizing that corruptions are made of.

Images and fields are float32 arrays (n, C, H, W).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch.nn.functional import interpolate

SIDE = 32
"""The side of the image, in pixels, whose pixels all lengths count."""


def unit(images: np.ndarray) -> float:
    """Return how many pixels of `images` one pixel of a 32-pixel image is, by the shorter side."""
    return min(images.shape[-2:]) / SIDE


def finely(corruption: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Run `corruption(images, ...)` on images of 32 pixels at least: smaller ones in blocks, averaged back."""

    @wraps(corruption)
    def run(images: np.ndarray, *arguments: object) -> np.ndarray:
        n, channels, height, width = images.shape
        block = math.ceil(SIDE / min(height, width))
        large = images.repeat(block, axis=-2).repeat(block, axis=-1)
        return corruption(large, *arguments).reshape(n, channels, height, block, width, block).mean(axis=(3, 5))

    return run


def fitted(fields: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Resize `fields` to the height and width of `like`, linearly; averages where it shrinks."""
    size = like.shape[-2:]
    return interpolate(torch.from_numpy(fields), size=size, mode="bilinear", antialias=True).numpy()


def blurred(fields: np.ndarray, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """Blur with a Gaussian of `sigma` pixels, cut at `truncate` sigmas; `mode` as in `scipy.ndimage`."""
    return gaussian_filter(fields, (0, 0, sigma, sigma), mode=mode, truncate=truncate)


def zoomed(fields: np.ndarray, factor: float) -> np.ndarray:
    """Enlarge the middle of each field by `factor` of at least 1, linearly, to the size that it had."""
    rows, columns = (_enlarging(length, factor) for length in fields.shape[-2:])
    return rows @ fields @ columns.T


def _enlarging(length: int, factor: float) -> np.ndarray:
    """Return the matrix (length, length) of linear interpolation from the middle of a line to all of it."""
    crop = math.ceil(length / factor)
    size = round(crop * factor)
    first = (size - length) // 2
    # First and last pixel of the crop fall on first and last of the enlarged line, as in scipy.ndimage.zoom.
    at = (length - crop) // 2 + np.arange(first, first + length) * ((crop - 1) / (size - 1))
    return np.clip(1 - np.abs(at[:, None] - np.arange(length)), 0, None).astype(np.float32)


def dragged(fields: np.ndarray, radius: float, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """ImageMagick's motion blur: half a Gaussian of `sigma` pixels along a line, so that the image moves too.

    Each pixel is the weighted mean of the 2 ⌈radius⌉ + 1 pixels that lie ahead of it at `degrees` (n,), from right
    towards down; the border is repeated.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights = (weights / weights.sum()).astype(np.float32)
    angle = np.deg2rad(degrees)
    height, width = fields.shape[-2:]
    rows, columns = np.arange(height)[:, None], np.arange(width)
    total = np.zeros_like(fields)
    for step, weight in enumerate(weights):
        down, right = (
            np.ceil(step * part - 0.5).astype(np.int64)[:, None, None] for part in (np.sin(angle), np.cos(angle))
        )
        total += weight * picked(fields, rows + down, columns + right)
    return total


def picked(fields: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the pixels at integer `rows` and `columns`, together (n, H, W); outside, the border pixel next to them."""
    n, channels, height, width = fields.shape
    index = rows.clip(0, height - 1) * width + columns.clip(0, width - 1)
    index = torch.from_numpy(index.reshape(n, 1, -1)).expand(-1, channels, -1)
    return torch.from_numpy(fields.reshape(n, channels, -1)).gather(2, index).reshape(fields.shape).numpy()
