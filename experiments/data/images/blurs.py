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
    pixel = scale(images)
    length = radius * pixel
    rim = max(1, round(pixel))
    reach = int(length) + rim
    squares = np.arange(-reach, reach + 1) ** 2
    distances = squares[:, None] + squares
    inside = (distances <= length**2).astype(float)
    disk = gaussian_filter(inside, alias * pixel, mode="constant", radius=rim)
    weights = (disk / disk.sum()).astype(np.float32)
    kernel = torch.from_numpy(weights)[None, None]
    # Each channel is an image of its own: (n C, 1, H, W).
    flat = torch.from_numpy(images).flatten(0, 1)[:, None]
    padded = pad(flat, (reach,) * 4, mode="reflect")
    blurred = conv2d(padded, kernel)
    return blurred.numpy().reshape(images.shape)


def glass_blur(images: np.ndarray, rng: Generator, sigma: float, iterations: int) -> np.ndarray:
    """Blur, replace each pixel by a random neighbour, `iterations` times, and blur again.

    The paper swaps pixels. The program of CIFAR-C's own files copies the neighbour, 0 or 1 pixels
    up and left, since its swap reads a pixel that it has overwritten. This function does the same
    and omits the same border.
    """
    reach = max(1, round(scale(images)))
    n, _, height, width = images.shape
    rows = np.arange(height)[:, None]
    columns = np.arange(width)
    inner_rows = (reach < rows) & (rows <= height - reach)
    inner_columns = (reach < columns) & (columns <= width - reach)
    inner = inner_rows & inner_columns
    blurred = gaussian_blur(images, sigma)
    for _ in range(iterations):
        down, right = inner * rng.integers(-reach, reach, size=(2, n, height, width))
        blurred = take_pixels(blurred, rows + down, columns + right)
    return gaussian_blur(blurred, sigma)


def motion_blur(images: np.ndarray, rng: Generator, radius: float, sigma: float) -> np.ndarray:
    """Blur along a line at a random angle within 45° of the horizontal."""
    angles = rng.uniform(-45, 45, size=len(images))
    pixel = scale(images)
    return blur_along(images, radius * pixel, sigma * pixel, angles)


def zoom_blur(images: np.ndarray, rng: Generator, end: float) -> np.ndarray:
    """Average the image and its enlargements by 1, 1.01, … below `end`."""
    # Rounding includes the ends 1.06 and 1.11, as in the original.
    factors = np.arange(1, end, 0.01)
    enlarged = sum(enlarge(images, factor) for factor in factors)
    return (images + enlarged) / (len(factors) + 1)


def gaussian_blur(images: np.ndarray, sigma: float) -> np.ndarray:
    """Convolve with a Gaussian of `sigma` pixels."""
    width = sigma * scale(images)
    return gaussian_filter(images, (0, 0, width, width), mode="nearest")


def elastic_transform(
    images: np.ndarray, rng: Generator, amplitude: float, sigma: float, jitter: float
) -> np.ndarray:
    """Move three corners by up to `jitter`, then every pixel by blurred noise.

    The noise is uniform in ±`amplitude`, blurred with a Gaussian of `sigma`; all three lengths are
    fractions of the side. Wide Gaussians hardly move any pixel, so a higher severity does not
    always change an image more.
    """
    n, _, height, width = images.shape
    side = SIDE * scale(images)
    last = np.array([width - 1, height - 1])
    centre = np.array([width // 2, height // 2])
    directions = np.array([[1, 1], [1, -1], [-1, -1]])
    corners = centre + side // 3 * directions
    reach = jitter * side
    moved = corners + rng.uniform(-reach, reach, size=(n, 3, 2))
    axes = np.meshgrid(np.arange(width), np.arange(height))
    points = np.stack(axes, axis=-1)
    # (x, y, 1) A maps output to input positions; it maps the moved corners to the corners.
    extended = np.insert(moved, 2, 1, axis=2)
    affine = np.linalg.solve(extended, np.broadcast_to(corners, moved.shape))
    sources = points @ affine[:, None, :2] + affine[:, None, 2:]
    images = _sample_mirrored(images, 2 * sources / last - 1, align_corners=True)

    noise = rng.uniform(-1, 1, size=(n, 2, SIDE, SIDE))
    spread = SIDE * sigma
    blurred = gaussian_filter(noise, (0, 0, spread, spread), mode="reflect", truncate=3)
    scaled = (amplitude * side * blurred).astype(np.float32)
    shifts = resize_like(scaled, images).transpose(0, 2, 3, 1)
    places = (2 * (points + shifts) + 1) / (last + 1) - 1
    return _sample_mirrored(images, places, align_corners=False)


def _sample_mirrored(images: np.ndarray, points: np.ndarray, *, align_corners: bool) -> np.ndarray:
    """Sample bilinearly at points (n, H, W, 2) of x and y in [-1, 1], reflected at the border."""
    grid = torch.from_numpy(points.astype(np.float32))
    given = torch.from_numpy(images)
    sampled = grid_sample(given, grid, padding_mode="reflection", align_corners=align_corners)
    return sampled.numpy()


def resize_like(fields: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Resize `fields` to the height and width of `images`, bilinearly and antialiased."""
    size = images.shape[-2:]
    given = torch.from_numpy(fields)
    return interpolate(given, size=size, mode="bilinear", antialias=True).numpy()


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
    positions = np.arange(length)
    ratio = (crop - 1) / (size - 1)
    steps = ((size - length) // 2 + positions) * ratio
    sources = (length - crop) // 2 + steps
    distances = np.abs(sources[:, None] - positions)
    return np.clip(1 - distances, 0, None).astype(np.float32)


def blur_along(fields: np.ndarray, radius: float, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """Blur with half a Gaussian of `sigma` pixels along a line, as ImageMagick does, which also
    shifts the image.

    Each pixel is the weighted mean of the 2 ⌈radius⌉ + 1 pixels from itself on in direction
    `degrees` (n,), from right towards down; the border is repeated.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    densities = np.exp(-(steps**2) / (2 * sigma**2))
    weights = (densities / densities.sum()).astype(np.float32)
    # The unit vector of the direction, down and right, (2, n, 1, 1).
    angles = np.deg2rad(degrees)
    directions = np.stack([np.sin(angles), np.cos(angles)])[..., None, None]
    rows, columns = map(np.arange, fields.shape[-2:])
    total = np.zeros_like(fields)
    for step, weight in zip(steps, weights, strict=True):
        down, right = np.ceil(step * directions - 0.5).astype(np.int64)
        shifted = take_pixels(fields, rows[:, None] + down, columns + right)
        total += weight * shifted
    return total


def take_pixels(fields: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the pixels at integer `rows` and `columns`, broadcast to (n, H, W); the border is
    repeated."""
    n, channels, height, width = fields.shape
    rows = rows.clip(0, height - 1)
    columns = columns.clip(0, width - 1)
    index = (rows * width + columns).reshape(n, 1, -1)
    flat = fields.reshape(n, channels, -1)
    taken = np.take_along_axis(flat, index, axis=2)
    return taken.reshape(fields.shape)
