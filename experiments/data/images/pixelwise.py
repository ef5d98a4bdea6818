"""Corruptions that move no pixels: noise, colours, blocks, and overlays between camera and scene
(snow, frost, fog).

A grey image is treated as three equal channels, and the result as their luma.
"""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

from probattn.experiments.data.images.blurs import SIDE, blur_along, enlarge, resize_like

Generator = np.random.Generator
# Weights of red, green and blue in the luma of Rec. 601, which JPEG, OpenCV and Pillow use.
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
# Statistics of 32-pixel crops of frost's photographs: mean colour over its luma, range of mean
# luma, deviation.
_ICE = np.array([0.89, 1.02, 1.09], np.float32).reshape(1, 3, 1, 1)
_LEVEL = 0.43, 0.83
_CONTRAST = 0.085


def luma(images: np.ndarray) -> np.ndarray:
    """Return the luma (n, 1, H, W) of images (n, C, H, W) with 1 or 3 channels."""
    if images.shape[1] == 1:
        return images
    return np.tensordot(images, LUMA, axes=(1, 0))[:, None]


def gaussian_noise(images: np.ndarray, rng: Generator, sigma: float) -> np.ndarray:
    """Add normal noise of standard deviation `sigma`."""
    return images + sigma * rng.standard_normal(images.shape, dtype=np.float32)


def shot_noise(images: np.ndarray, rng: Generator, photons: float) -> np.ndarray:
    """Add Poisson noise, with `photons` the mean count at white: the variance is the value /
    `photons`."""
    return (rng.poisson(images * photons) / photons).astype(np.float32)


def impulse_noise(images: np.ndarray, rng: Generator, share: float) -> np.ndarray:
    """Set a `share` of the values to 0 or 1, with equal probability."""
    draw = rng.random(images.shape, dtype=np.float32)
    extremes = (draw < share / 2).astype(np.float32)
    return np.where(draw < share, extremes, images)


def brightness(images: np.ndarray, rng: Generator, amount: float) -> np.ndarray:
    """Raise the value of HSV, the largest channel, by `amount`, to at most 1; hue and saturation
    are unchanged."""
    value = images.max(axis=1, keepdims=True)
    raised = np.minimum(value + amount, 1)
    # Colours scale with their value; black, which has no hue, becomes grey.
    divisor = np.where(value > 0, value, 1)
    scaled = images * (raised / divisor)
    return np.where(value > 0, scaled, raised)


def contrast(images: np.ndarray, rng: Generator, factor: float) -> np.ndarray:
    """Multiply the deviation of each channel from its mean over the image by `factor`."""
    mean = images.mean(axis=(2, 3), keepdims=True)
    return mean + factor * (images - mean)


def pixelate(images: np.ndarray, rng: Generator, share: float) -> np.ndarray:
    """Shrink to a `share` of the side, at least one pixel, and enlarge again, both with a box
    filter."""

    def shrink(image: Image.Image) -> Image.Image:
        size = [max(1, int(length * share)) for length in image.size]
        small = image.resize(size, Image.Resampling.BOX)
        return small.resize(image.size, Image.Resampling.BOX)

    return _by_pillow(images, shrink)


def jpeg_compression(images: np.ndarray, rng: Generator, quality: int) -> np.ndarray:
    """Compress as JPEG of `quality`, at most 95; grey images as grey JPEG."""

    def compress(image: Image.Image) -> Image.Image:
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer)

    return _by_pillow(images, compress)


def snow(images: np.ndarray, rng: Generator, *severity: float) -> np.ndarray:
    """Whiten a share 1 − `keep` of the image and add flakes: thresholded normal noise, enlarged and
    motion-blurred.

    Args:
        images: to be snowed upon.
        rng: source of the flakes.
        severity: mean, deviation, enlargement and threshold of the noise; radius and sigma of the
            blur; `keep`.
    """
    mean, std, factor, threshold, radius, sigma, keep = severity
    n = len(images)
    noise = rng.normal(mean, std, size=(n, 1, SIDE, SIDE)).astype(np.float32)
    noise = enlarge(noise, factor)
    dots = np.where(noise < threshold, 0, noise).clip(0, 1)
    angles = rng.uniform(-135, -45, size=n)
    streaks = blur_along(dots, radius, sigma, angles)
    flakes = resize_like(streaks, images)
    white = np.maximum(images, 1.5 * luma(images) + 0.5)
    whitened = keep * images + (1 - keep) * white
    return whitened + flakes + flakes[..., ::-1, ::-1]


def frost(images: np.ndarray, rng: Generator, keep: float, strength: float) -> np.ndarray:
    """Overlay needles of ice.

    The original overlays crops of five photographs, which cannot be distributed here. Instead,
    needles are noise blurred along three random lines, with the photographs' colour, brightness and
    contrast. Either may be harder for a model.
    """
    n = len(images)
    lines = []
    for _ in range(3):
        noise = rng.standard_normal((n, 1, SIDE, SIDE), np.float32)
        angles = rng.uniform(0, 360, n)
        lines.append(blur_along(noise, 6, 3, angles))
    needles = np.sum(lines, axis=0)
    needles = needles / needles.std(axis=(-2, -1), keepdims=True)
    level = rng.uniform(*_LEVEL, size=(n, 1, 1, 1)).astype(np.float32)
    ice = resize_like(level + _CONTRAST * needles, images)
    colour = _ICE if images.shape[1] == 3 else luma(_ICE)
    return keep * images + strength * (ice * colour).clip(0, 1)


def fog(images: np.ndarray, rng: Generator, strength: float, decay: float) -> np.ndarray:
    """Add `strength` times a plasma fractal, scaled so that the brightest pixel can keep its
    brightness."""
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    haze = resize_like(plasma(len(images), decay, rng), images)
    return (images + strength * haze) * brightest / (brightest + strength)


def plasma(n: int, decay: float, rng: Generator) -> np.ndarray:
    """Return n plasma fractals (n, 1, 32, 32) in [0, 1] by the diamond–square algorithm on a torus.

    Each point is the mean of its four neighbours plus uniform noise, whose amplitude falls by
    `decay` squared from one step to the next, as in CIFAR-C.
    """
    field = np.zeros((n, SIDE, SIDE))
    step = SIDE
    amplitude = 1.0
    while step > 1:
        half = step // 2
        corners = field[:, ::step, ::step]
        middles = corners + np.roll(corners, -1, axis=1)
        middles = (middles + np.roll(middles, -1, axis=2)) / 4
        middles = middles + rng.uniform(-amplitude, amplitude, middles.shape)
        field[:, half::step, half::step] = middles
        for axis, rows, columns in ((1, 0, half), (2, half, 0)):
            beside = corners + np.roll(corners, -1, axis=3 - axis)
            neighbours = beside + middles + np.roll(middles, 1, axis=axis)
            noise = rng.uniform(-amplitude, amplitude, corners.shape)
            field[:, rows::step, columns::step] = neighbours / 4 + noise
        step = half
        amplitude = amplitude / decay**2
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field[:, None].astype(np.float32)


def _by_pillow(images: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    levels = torch.from_numpy(np.rint(255 * images).astype(np.uint8))
    opened = map(to_pil_image, levels)
    changed = torch.stack([pil_to_tensor(change(image)) for image in opened])
    return changed.numpy().astype(np.float32) / 255
