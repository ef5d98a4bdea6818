"""Corruptions that mix or move neighbouring pixels, and the resampling that they and the overlays
consist of.

Images and fields are float32 arrays (n, C, H, W).
"""

import math

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch.nn.functional import conv2d, grid_sample, interpolate, pad

Generator = np.random.Generator
SIDE = 32  # of the reference image, in whose pixels all lengths are given


def scale(images: np.ndarray) -> float:
    """Return the pixels of `images` per pixel of a 32-pixel image, by the shorter side."""
    return min(images.shape[-2:]) / SIDE


def defocus_blur(images: np.ndarray, rng: Generator, radius: float, alias: float) -> np.ndarray:
    """Convolve with a disk of `radius` pixels, smoothed with a Gaussian of `alias` pixels."""
    rim = max(1, round(scale(images)))
    reach = int(radius * scale(images)) + rim
    squares = np.arange(-reach, reach + 1) ** 2
    inside = (squares[:, None] + squares <= (radius * scale(images)) ** 2).astype(float)
    disk = gaussian_filter(inside, alias * scale(images), mode="constant", radius=rim)
    kernel = torch.from_numpy((disk / disk.sum()).astype(np.float32))
    flat = torch.from_numpy(images).flatten(0, 1)[:, None]
    return (
        conv2d(pad(flat, (reach,) * 4, mode="reflect"), kernel[None, None])
        .numpy()
        .reshape(images.shape)
    )


def glass_blur(images: np.ndarray, rng: Generator, sigma: float, iterations: int) -> np.ndarray:
    """Blur, replace each pixel by a random neighbour, `iterations` times, and blur again.

    The paper swaps pixels. The program of CIFAR-C's own files copies the neighbour, 0 or 1 pixels
    up and left, since its swap reads a pixel that it has overwritten. This function does the same
    and omits the same border.
    """
    reach = max(1, round(scale(images)))
    n, _, height, width = images.shape
    rows, columns = np.arange(height)[:, None], np.arange(width)
    inner = (
        (reach < rows) & (rows <= height - reach) & (reach < columns) & (columns <= width - reach)
    )
    blurred = gaussian_blur(images, sigma)
    for _ in range(iterations):
        down, right = inner * rng.integers(-reach, reach, size=(2, n, height, width))
        blurred = take_pixels(blurred, rows + down, columns + right)
    return gaussian_blur(blurred, sigma)


def motion_blur(images: np.ndarray, rng: Generator, radius: float, sigma: float) -> np.ndarray:
    """Blur along a line at a random angle within 45° of the horizontal."""
    angles = rng.uniform(-45, 45, size=len(images))
    return blur_along(images, radius * scale(images), sigma * scale(images), angles)


def zoom_blur(images: np.ndarray, rng: Generator, end: float) -> np.ndarray:
    """Average the image and its enlargements by 1, 1.01, … below `end`."""
    factors = np.arange(
        1, end, 0.01
    )  # rounding includes the ends 1.06 and 1.11, as in the original
    return (images + sum(enlarge(images, factor) for factor in factors)) / (len(factors) + 1)


def gaussian_blur(images: np.ndarray, sigma: float) -> np.ndarray:
    """Convolve with a Gaussian of `sigma` pixels."""
    return gaussian_filter(
        images, (0, 0, sigma * scale(images), sigma * scale(images)), mode="nearest"
    )


def elastic_transform(
    images: np.ndarray, rng: Generator, amplitude: float, sigma: float, jitter: float
) -> np.ndarray:
    """Move three corners by up to `jitter`, then every pixel by blurred noise.

    The noise is uniform in ±`amplitude`, blurred with a Gaussian of `sigma`; all three lengths are
    fractions of the side. Wide Gaussians hardly move any pixel, so a higher severity does not
    always change an image more.
    """
    n, _, height, width = images.shape
    side, last = SIDE * scale(images), np.array([width - 1, height - 1])
    corners = np.array([width // 2, height // 2]) + side // 3 * np.array(
        [[1, 1], [1, -1], [-1, -1]]
    )
    moved = corners + rng.uniform(-jitter * side, jitter * side, size=(n, 3, 2))
    points = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
    # Maps output to input positions.
    affine = np.linalg.solve(np.insert(moved, 2, 1, axis=2), np.broadcast_to(corners, moved.shape))
    sources = points @ affine[:, None, :2] + affine[:, None, 2:]
    images = _sample_mirrored(images, 2 * sources / last - 1, align_corners=True)

    noise = rng.uniform(-1, 1, size=(n, 2, SIDE, SIDE))
    blurred = gaussian_filter(noise, (0, 0, SIDE * sigma, SIDE * sigma), mode="reflect", truncate=3)
    shifts = resize_like((amplitude * side * blurred).astype(np.float32), images).transpose(
        0, 2, 3, 1
    )
    return _sample_mirrored(
        images, (2 * (points + shifts) + 1) / (last + 1) - 1, align_corners=False
    )


def _sample_mirrored(images: np.ndarray, points: np.ndarray, *, align_corners: bool) -> np.ndarray:
    """Sample bilinearly at points (n, H, W, 2) of x and y in [-1, 1], reflected at the border."""
    grid = torch.from_numpy(points.astype(np.float32))
    sampled = grid_sample(
        torch.from_numpy(images), grid, padding_mode="reflection", align_corners=align_corners
    )
    return sampled.numpy()


def resize_like(fields: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Resize `fields` to the height and width of `images`, bilinearly and antialiased."""
    return interpolate(
        torch.from_numpy(fields), size=images.shape[-2:], mode="bilinear", antialias=True
    ).numpy()


def enlarge(fields: np.ndarray, factor: float) -> np.ndarray:
    """Enlarge the centre of each field by `factor`, at least 1, bilinearly; the size is
    unchanged."""
    rows, columns = (_enlargement(length, factor) for length in fields.shape[-2:])
    return rows @ fields @ columns.T


def _enlargement(length: int, factor: float) -> np.ndarray:
    """Return the matrix (length, length) of linear interpolation from the centre of a line to all
    of it."""
    crop = math.ceil(length / factor)
    size = round(crop * factor)
    # The ends of the crop map to the ends of the enlarged line, as in scipy.ndimage.zoom.
    steps = ((size - length) // 2 + np.arange(length)) * ((crop - 1) / (size - 1))
    sources = (length - crop) // 2 + steps
    return np.clip(1 - np.abs(sources[:, None] - np.arange(length)), 0, None).astype(np.float32)


def blur_along(fields: np.ndarray, radius: float, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """Blur with half a Gaussian of `sigma` pixels along a line, as ImageMagick does, which also
    shifts the image.

    Each pixel is the weighted mean of the 2 ⌈radius⌉ + 1 pixels from itself on in direction
    `degrees` (n,), from right towards down; the border is repeated.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    directions = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
    rows, columns = (np.arange(length) for length in fields.shape[-2:])
    total = np.zeros_like(fields)
    for step, weight in zip(steps, (weights / weights.sum()).astype(np.float32), strict=True):
        down, right = (
            np.ceil(step * direction - 0.5).astype(np.int64)[:, None, None]
            for direction in directions
        )
        total += weight * take_pixels(fields, rows[:, None] + down, columns + right)
    return total


def take_pixels(fields: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the pixels at integer `rows` and `columns`, broadcast to (n, H, W); the border is
    repeated."""
    n, channels, height, width = fields.shape
    index = (rows.clip(0, height - 1) * width + columns.clip(0, width - 1)).reshape(n, 1, -1)
    return np.take_along_axis(fields.reshape(n, channels, -1), index, axis=2).reshape(fields.shape)
