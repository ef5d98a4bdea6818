"""Blur: corruptions that mix a pixel with its neighbours."""

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch.nn.functional import conv2d, pad

from probattn.experiments.data.images.corruptions.resampling import (
    blur_gaussian,
    blur_motion,
    scale,
    take_pixels,
    upsample_small,
    zoom_in,
)


@upsample_small
def defocus_blur(images: np.ndarray, rng: np.random.Generator, radius: float, alias: float) -> np.ndarray:
    """Convolve with a disk of `radius` pixels, smoothed with a Gaussian of `alias` pixels."""
    kernel = torch.from_numpy(disk(radius * scale(images), alias * scale(images), rim=max(1, round(scale(images)))))
    reach = len(kernel) // 2
    flat = torch.from_numpy(images).flatten(0, 1)[:, None]
    return conv2d(pad(flat, (reach,) * 4, mode="reflect"), kernel[None, None]).numpy().reshape(images.shape)


def disk(radius: float, alias: float, *, rim: int) -> np.ndarray:
    """Return a disk of `radius` pixels and sum 1, smoothed with a Gaussian of `alias` cut off at `rim` pixels."""
    reach = int(radius) + rim
    squares = np.arange(-reach, reach + 1) ** 2
    inside = (squares[:, None] + squares <= radius**2).astype(float)
    smooth = gaussian_filter(inside, alias, mode="constant", radius=rim)
    return (smooth / smooth.sum()).astype(np.float32)


@upsample_small
def glass_blur(
    images: np.ndarray, rng: np.random.Generator, sigma: float, max_delta: int, iterations: int
) -> np.ndarray:
    """Blur, replace each pixel by a random neighbour, `iterations` times, and blur again.

    The paper swaps pixels. The program of CIFAR-C's own files copies the neighbour, 0 to `max_delta` pixels up and
    left, since its swap reads a pixel that it has overwritten; this function does the same and omits the same border.
    """
    delta = max(1, round(max_delta * scale(images)))
    n, _, height, width = images.shape
    rows, columns = np.arange(height)[:, None], np.arange(width)
    inner = (delta < rows) & (rows <= height - delta) & (delta < columns) & (columns <= width - delta)
    out = blur_gaussian(images, sigma * scale(images))
    for _ in range(iterations):
        down, right = inner * rng.integers(-delta, delta, size=(2, n, height, width))
        out = take_pixels(out, rows + down, columns + right)
    return blur_gaussian(out, sigma * scale(images))


@upsample_small
def motion_blur(images: np.ndarray, rng: np.random.Generator, radius: float, sigma: float) -> np.ndarray:
    """Blur along a line at a random angle within 45° of the horizontal."""
    angles = rng.uniform(-45, 45, size=len(images))
    return blur_motion(images, radius * scale(images), sigma * scale(images), angles)


@upsample_small
def zoom_blur(images: np.ndarray, rng: np.random.Generator, end: float) -> np.ndarray:
    """Average the image and its enlargements by 1, 1.01, … below `end`."""
    # Rounding includes the ends 1.06 and 1.11, as in the original.
    factors = np.arange(1, end, 0.01)
    return (images + sum(zoom_in(images, factor) for factor in factors)) / (len(factors) + 1)


@upsample_small
def gaussian_blur(images: np.ndarray, rng: np.random.Generator, sigma: float) -> np.ndarray:
    """Convolve with a Gaussian of `sigma` pixels."""
    return blur_gaussian(images, sigma * scale(images))
