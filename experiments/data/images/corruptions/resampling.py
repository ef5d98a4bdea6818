"""Resampling of pixels: the blurs, zoom and resizing that corruptions consist of.

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
"""Side of the reference image, in whose pixels all lengths are given."""


def scale(images: np.ndarray) -> float:
    """Return the pixels of `images` per pixel of a 32-pixel image, by the shorter side."""
    return min(images.shape[-2:]) / SIDE


def upsample_small(corruption: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Decorate `corruption(images, ...)` to run on at least 32×32 pixels: enlarge smaller images, then average back."""

    @wraps(corruption)
    def run(images: np.ndarray, *arguments: object) -> np.ndarray:
        n, channels, height, width = images.shape
        block = math.ceil(SIDE / min(height, width))
        large = images.repeat(block, axis=-2).repeat(block, axis=-1)
        return corruption(large, *arguments).reshape(n, channels, height, block, width, block).mean(axis=(3, 5))

    return run


def resize_like(fields: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Resize `fields` to the height and width of `like`, bilinearly and antialiased."""
    size = like.shape[-2:]
    return interpolate(torch.from_numpy(fields), size=size, mode="bilinear", antialias=True).numpy()


def blur_gaussian(fields: np.ndarray, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """Blur with a Gaussian of `sigma` pixels, truncated at `truncate` sigmas; `mode` as in `scipy.ndimage`."""
    return gaussian_filter(fields, (0, 0, sigma, sigma), mode=mode, truncate=truncate)


def zoom_in(fields: np.ndarray, factor: float) -> np.ndarray:
    """Enlarge the centre of each field by `factor`, at least 1, bilinearly; the size is unchanged."""
    rows, columns = (_zoom_matrix(length, factor) for length in fields.shape[-2:])
    return rows @ fields @ columns.T


def _zoom_matrix(length: int, factor: float) -> np.ndarray:
    """Return the matrix (length, length) of linear interpolation from the centre of a line to all of it."""
    crop = math.ceil(length / factor)
    size = round(crop * factor)
    first = (size - length) // 2
    # The ends of the crop map to the ends of the enlarged line, as in scipy.ndimage.zoom.
    at = (length - crop) // 2 + np.arange(first, first + length) * ((crop - 1) / (size - 1))
    return np.clip(1 - np.abs(at[:, None] - np.arange(length)), 0, None).astype(np.float32)


def blur_motion(fields: np.ndarray, radius: float, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """Blur with half a Gaussian of `sigma` pixels along a line, as ImageMagick does, which also shifts the image.

    Each pixel is the weighted mean of the 2 ⌈radius⌉ + 1 pixels from itself on in direction `degrees` (n,), from right
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
        total += weight * take_pixels(fields, rows + down, columns + right)
    return total


def take_pixels(fields: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the pixels at integer `rows` and `columns`, broadcast to (n, H, W); the border is repeated."""
    n, channels, height, width = fields.shape
    index = rows.clip(0, height - 1) * width + columns.clip(0, width - 1)
    index = torch.from_numpy(index.reshape(n, 1, -1)).expand(-1, channels, -1)
    return torch.from_numpy(fields.reshape(n, channels, -1)).gather(2, index).reshape(fields.shape).numpy()
