"""Corruptions of single pixels, colours and blocks: noise, brightness, contrast, pixelation and JPEG.

A grey image is treated as three equal channels, and the result as their luma.
"""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

Generator = np.random.Generator
# Weights of red, green and blue in the luma of Rec. 601, which JPEG, OpenCV and Pillow use.
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def luma(images: np.ndarray) -> np.ndarray:
    """Return the luma (n, 1, H, W) of images (n, C, H, W) with 1 or 3 channels."""
    return images if images.shape[1] == 1 else np.tensordot(images, LUMA, axes=(1, 0))[:, None]


def gaussian_noise(images: np.ndarray, rng: Generator, sigma: float) -> np.ndarray:
    """Add normal noise of standard deviation `sigma`."""
    return images + sigma * rng.standard_normal(images.shape, dtype=np.float32)


def shot_noise(images: np.ndarray, rng: Generator, photons: float) -> np.ndarray:
    """Add Poisson noise, with `photons` the mean count at white: the variance is the value / `photons`."""
    return (rng.poisson(images * photons) / photons).astype(np.float32)


def impulse_noise(images: np.ndarray, rng: Generator, share: float) -> np.ndarray:
    """Set a `share` of the values to 0 or 1, with equal probability."""
    draw = rng.random(images.shape, dtype=np.float32)
    return np.where(draw < share, (draw < share / 2).astype(np.float32), images)


def brightness(images: np.ndarray, rng: Generator, amount: float) -> np.ndarray:
    """Raise the value of HSV, the largest channel, by `amount`, to at most 1; hue and saturation are unchanged."""
    value = images.max(axis=1, keepdims=True)
    raised = np.minimum(value + amount, 1)
    # Colours scale with their value; black, which has no hue, becomes grey.
    return np.where(value > 0, images * (raised / np.where(value > 0, value, 1)), raised)


def contrast(images: np.ndarray, rng: Generator, factor: float) -> np.ndarray:
    """Multiply the deviation of each channel from its mean over the image by `factor`."""
    mean = images.mean(axis=(2, 3), keepdims=True)
    return mean + factor * (images - mean)


def pixelate(images: np.ndarray, rng: Generator, share: float) -> np.ndarray:
    """Shrink to a `share` of the side, at least one pixel, and enlarge again, both with a box filter."""

    def shrink(image: Image.Image) -> Image.Image:
        small = [max(1, int(length * share)) for length in image.size]
        return image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)

    return _by_pillow(images, shrink)


def jpeg_compression(images: np.ndarray, rng: Generator, quality: int) -> np.ndarray:
    """Compress as JPEG of `quality`, at most 95; grey images as grey JPEG."""

    def compress(image: Image.Image) -> Image.Image:
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return _by_pillow(images, compress)


def _by_pillow(images: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    levels = torch.from_numpy(np.rint(255 * images).astype(np.uint8))
    changed = torch.stack([pil_to_tensor(change(to_pil_image(image))) for image in levels])
    return changed.numpy().astype(np.float32) / 255
