"""The corruptions that mix a pixel with its neighbours."""

import numpy as np
import torch
from torch.nn.functional import conv2d, pad

from probattn.experiments.data.images.corruptions.resampling import blurred, dragged, finely, picked, unit, zoomed


@finely
def defocus_blur(images: np.ndarray, rng: np.random.Generator, radius: float, alias: float) -> np.ndarray:
    """Convolve with a disk of `radius` pixels whose rim is smoothed with a Gaussian of `alias` pixels."""
    kernel = torch.from_numpy(disk(radius * unit(images), alias * unit(images), rim=max(1, round(unit(images)))))
    reach = len(kernel) // 2
    flat = torch.from_numpy(images).flatten(0, 1)[:, None]
    return conv2d(pad(flat, (reach,) * 4, mode="reflect"), kernel[None, None]).numpy().reshape(images.shape)


def disk(radius: float, alias: float, *, rim: int) -> np.ndarray:
    """Return a disk of `radius` pixels, blurred with a Gaussian of `alias` that reaches `rim` pixels, of sum 1."""
    reach = int(radius) + rim
    squares = np.arange(-reach, reach + 1) ** 2
    inside = (squares[:, None] + squares <= radius**2).astype(np.float32)
    smooth = np.exp(-(np.arange(-rim, rim + 1) ** 2) / (2 * alias**2))
    for axis in (0, 1):
        inside = np.apply_along_axis(np.convolve, axis, inside, smooth / smooth.sum(), "same")
    return (inside / inside.sum()).astype(np.float32)


@finely
def glass_blur(
    images: np.ndarray, rng: np.random.Generator, sigma: float, max_delta: int, iterations: int
) -> np.ndarray:
    """Blur, let each pixel take the value of a random neighbour, `iterations` times, and blur again.

    CIFAR-C's own files do not swap pixels, as their paper says: the program that made them copies the neighbour, 0 to
    `max_delta` pixels up and left, since its swap reads what it has overwritten. So do we, and leave out the same rim.
    """
    delta = max(1, round(max_delta * unit(images)))
    n, _, height, width = images.shape
    rows, columns = np.arange(height)[:, None], np.arange(width)
    inner = (delta < rows) & (rows <= height - delta) & (delta < columns) & (columns <= width - delta)
    out = blurred(images, sigma * unit(images))
    for _ in range(iterations):
        down, right = inner * rng.integers(-delta, delta, size=(2, n, height, width))
        out = picked(out, rows + down, columns + right)
    return blurred(out, sigma * unit(images))


@finely
def motion_blur(images: np.ndarray, rng: np.random.Generator, radius: float, sigma: float) -> np.ndarray:
    """Drag along a line at a random angle within 45° of the horizontal."""
    angles = rng.uniform(-45, 45, size=len(images))
    return dragged(images, radius * unit(images), sigma * unit(images), angles)


@finely
def zoom_blur(images: np.ndarray, rng: np.random.Generator, end: float) -> np.ndarray:
    """Average the image and its enlargements by 1, 1.01, … below `end`."""
    # Rounding lets 1.06 and 1.11 themselves in, here as in the original.
    factors = np.arange(1, end, 0.01)
    return (images + sum(zoomed(images, factor) for factor in factors)) / (len(factors) + 1)


@finely
def gaussian_blur(images: np.ndarray, rng: np.random.Generator, sigma: float) -> np.ndarray:
    """Convolve with a Gaussian of `sigma` pixels."""
    return blurred(images, sigma * unit(images))
