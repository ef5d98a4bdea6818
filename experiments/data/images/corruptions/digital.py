"""Digital corruptions: contrast, elastic transform, pixelation, JPEG compression and saturation."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import grid_sample

from probattn.experiments.data.images.corruptions.colour import paint
from probattn.experiments.data.images.corruptions.resampling import (
    SIDE,
    blur_gaussian,
    resize_like,
    scale,
    upsample_small,
)


def contrast(images: np.ndarray, rng: np.random.Generator, factor: float) -> np.ndarray:
    """Multiply the deviation of each channel from its mean over the image by `factor`."""
    mean = images.mean(axis=(2, 3), keepdims=True)
    return mean + factor * (images - mean)


@upsample_small
def elastic_transform(
    images: np.ndarray, rng: np.random.Generator, amplitude: float, sigma: float, jitter: float
) -> np.ndarray:
    """Move three corners by up to `jitter`, then every pixel by blurred noise.

    The noise is uniform in ±`amplitude`, blurred with a Gaussian of `sigma`; all three lengths are fractions of the
    side. Wide Gaussians hardly move any pixel, so a higher severity does not always change an image more.
    """
    n, _, height, width = images.shape
    side = SIDE * scale(images)
    centre, reach = np.array([width // 2, height // 2]), side // 3
    corners = centre + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + rng.uniform(-jitter * side, jitter * side, size=(n, 3, 2))
    pixels = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
    # Maps output to input positions.
    affine = np.linalg.solve(_homogeneous(moved), np.broadcast_to(corners, moved.shape))
    images = _sample_mirrored(images, _homogeneous(pixels) @ affine[:, None], edge=False)

    noise = blur_gaussian(rng.uniform(-1, 1, size=(n, 2, SIDE, SIDE)), SIDE * sigma, mode="reflect", truncate=3)
    shifts = resize_like((amplitude * side * noise).astype(np.float32), images)
    return _sample_mirrored(images, pixels + shifts.transpose(0, 2, 3, 1), edge=True)


def _homogeneous(points: np.ndarray) -> np.ndarray:
    return np.concatenate([points, np.ones_like(points[..., :1])], axis=-1)


def _sample_mirrored(images: np.ndarray, points: np.ndarray, *, edge: bool) -> np.ndarray:
    """Sample images bilinearly at points (n, H, W, 2) of x and y in pixels, reflected at the border.

    The axis of reflection is the outer edge of the border pixels if `edge`, else their centres.
    """
    size = np.array(images.shape[:1:-1])
    scaled = (2 * points + 1) / size - 1 if edge else 2 * points / (size - 1) - 1
    grid = torch.from_numpy(scaled.astype(np.float32))
    return grid_sample(torch.from_numpy(images), grid, padding_mode="reflection", align_corners=not edge).numpy()


def pixelate(images: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Shrink to a `share` of the side, at least one pixel, and enlarge again, both with a box filter."""

    def shrink(image: Image.Image) -> Image.Image:
        small = [max(1, int(length * share)) for length in image.size]
        return image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)

    return _map_pil_images(images, shrink)


def jpeg_compression(images: np.ndarray, rng: np.random.Generator, quality: int) -> np.ndarray:
    """Compress as JPEG of `quality`, at most 95; grey images as grey JPEG."""

    def compress(image: Image.Image) -> Image.Image:
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return _map_pil_images(images, compress)


def _map_pil_images(images: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    grey = images.shape[1] == 1
    pixels = np.rint(255 * images).astype(np.uint8).transpose(0, 2, 3, 1)
    changed = [np.asarray(change(Image.fromarray(image[..., 0] if grey else image))) for image in pixels]
    return np.stack(changed).reshape(pixels.shape).transpose(0, 3, 1, 2).astype(np.float32) / 255


def saturate(images: np.ndarray, rng: np.random.Generator, factor: float, shift: float) -> np.ndarray:
    """Change the saturation S of HSV to `factor` S + `shift`, clipped to [0, 1]; hue and value are unchanged.

    Grey pixels have the hue of red, as in scikit-image, and turn red if `shift` is positive.
    """
    value = images.max(axis=1, keepdims=True)
    spread = value - images.min(axis=1, keepdims=True)
    coloured = spread > 0
    old = spread / np.where(coloured, value, 1)
    new = np.clip(factor * old + shift, 0, 1)
    # value − channel = value · S · (a function of the hue).
    out = value - (value - images) * (new / np.where(coloured, old, 1))
    return np.where(coloured, out, value * paint((1, 1 - shift, 1 - shift), images))
