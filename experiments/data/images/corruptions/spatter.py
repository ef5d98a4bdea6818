"""Spatter: splashes of water and of mud."""

import numpy as np
from scipy.ndimage import binary_propagation, correlate, correlate1d, distance_transform_edt, uniform_filter

from probattn.experiments.data.images.corruptions.colour import paint
from probattn.experiments.data.images.corruptions.resampling import SIDE, blur_gaussian, resize_like

WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)
_NEIGHBOURS = np.ones((1, 3, 3))


def spatter(
    images: np.ndarray,
    rng: np.random.Generator,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: bool,
) -> np.ndarray:
    """Splash the image with drops, blurred noise above `threshold`: water adds light, mud covers the image.

    `strength` is the maximal brightness of water, or the blur of the rims of mud in pixels.
    """
    noise = rng.normal(mean, std, size=(len(images), 1, SIDE, SIDE)).astype(np.float32)
    liquid = blur_gaussian(noise, sigma)
    if mud:
        cover = blur_gaussian((liquid > threshold).astype(np.float32), strength)
        cover = resize_like(np.where(cover < 0.8, 0, cover), images)
        return images * (1 - cover) + cover * paint(MUD, images)
    liquid = np.where(liquid < threshold, 0, liquid)[:, 0]
    shine = strength * _highlights(np.floor(255 * liquid.clip(0, 1)))[:, None]
    return images + resize_like(shine.astype(np.float32), images) * paint(WATER, images)


def _highlights(levels: np.ndarray) -> np.ndarray:
    """Return the highlights of drops of grey `levels` (n, H, W) in 0..255, embossed by distance from rims; max 1."""
    # One distance transform for all images; the sampling keeps the nearest rim in the same image.
    depth = distance_transform_edt(~canny_edges(levels), sampling=(1000, 1, 1))
    # The offset keeps integers after the filter's rounding.
    depth = np.floor(uniform_filter(np.minimum(depth, 20), (0, 3, 3), mode="mirror") + 1e-6)
    emboss = np.array([[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]])
    relief = correlate(equalize_histogram(depth), emboss, mode="mirror").clip(0, 255)
    light = levels * np.rint(uniform_filter(relief, (0, 3, 3), mode="mirror"))
    top = light.max(axis=(1, 2), keepdims=True)
    return light / np.where(top > 0, top, 1)


def canny_edges(levels: np.ndarray, *, low: float = 50, high: float = 150) -> np.ndarray:
    """Return the edges (n, H, W) of grey images by Canny's method, as in OpenCV, from 3×3 Sobel gradients.

    A candidate has the largest gradient across the edge. Candidates above `high` are edges, and those above `low` that
    are connected to them.
    """
    ramp, smooth = [-1, 0, 1], [1, 2, 1]
    right, down = (
        correlate1d(correlate1d(levels, ramp, axis=axis, mode="nearest"), smooth, axis=3 - axis, mode="nearest")
        for axis in (2, 1)
    )
    slope = np.abs(right) + np.abs(down)
    _, height, width = slope.shape
    padded = np.pad(slope, ((0, 0), (1, 1), (1, 1)))

    def neighbour(dy: int, dx: int) -> np.ndarray:
        return padded[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]

    flat = np.abs(down) < np.tan(np.pi / 8) * np.abs(right)
    steep = np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(right)
    falling = (right < 0) == (down < 0)
    top = np.select(
        [flat, steep, falling],
        [
            (slope > neighbour(0, -1)) & (slope >= neighbour(0, 1)),
            (slope > neighbour(-1, 0)) & (slope >= neighbour(1, 0)),
            (slope > neighbour(-1, -1)) & (slope > neighbour(1, 1)),
        ],
        (slope > neighbour(-1, 1)) & (slope > neighbour(1, -1)),
    )
    return binary_propagation(top & (slope > high), structure=_NEIGHBOURS, mask=top & (slope > low))


def equalize_histogram(values: np.ndarray) -> np.ndarray:
    """Equalize the histogram of each image of integers (n, H, W) in 0..255, as OpenCV does."""
    n, height, width = values.shape
    whole = values.astype(np.int64).reshape(n, -1)
    counts = np.bincount((whole + 256 * np.arange(n)[:, None]).ravel(), minlength=256 * n).reshape(n, 256)
    lowest = counts[np.arange(n), whole.min(axis=1)][:, None]
    rest = np.maximum(height * width - lowest, 1)  # an image of one level becomes 0
    table = np.rint(255 * (counts.cumsum(axis=1) - lowest).clip(0) / rest)
    return np.take_along_axis(table, whole, axis=1).reshape(values.shape)
