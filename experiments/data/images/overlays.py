"""Corruptions that lie between camera and scene: snow, frost, fog and splashes, the same for all channels."""

import numpy as np
from scipy.ndimage import binary_propagation, correlate, correlate1d, distance_transform_edt, uniform_filter

from probattn.experiments.data.images.blurs import SIDE, blur_along, enlarge, gaussian_blur, resize_like
from probattn.experiments.data.images.pixelwise import luma, paint

Generator = np.random.Generator
WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
# Statistics of 32-pixel crops of frost's photographs: mean colour over its luma, range of mean luma, deviation.
_ICE, _LEVEL, _CONTRAST = (0.89, 1.02, 1.09), (0.43, 0.83), 0.085


def snow(images: np.ndarray, rng: Generator, *severity: float) -> np.ndarray:
    """Whiten a share 1 − `keep` of the image and add flakes: thresholded normal noise, enlarged and motion-blurred.

    Args:
        images: to be snowed upon.
        rng: source of the flakes.
        severity: mean, deviation, enlargement and threshold of the noise; radius and sigma of the blur; `keep`.
    """
    mean, std, factor, threshold, radius, sigma, keep = severity
    n = len(images)
    flakes = enlarge(rng.normal(mean, std, size=(n, 1, SIDE, SIDE)).astype(np.float32), factor)
    flakes = np.where(flakes < threshold, 0, flakes).clip(0, 1)
    flakes = resize_like(blur_along(flakes, radius, sigma, rng.uniform(-135, -45, size=n)), images)
    white = np.maximum(images, 1.5 * luma(images) + 0.5)
    return keep * images + (1 - keep) * white + flakes + flakes[..., ::-1, ::-1]


def frost(images: np.ndarray, rng: Generator, keep: float, strength: float) -> np.ndarray:
    """Overlay needles of ice.

    The original overlays crops of five photographs, which cannot be distributed here. Instead, needles are noise
    blurred along three random lines, with the photographs' colour, brightness and contrast. Either may be harder for a
    model.
    """
    n, shape = len(images), (len(images), 1, SIDE, SIDE)
    needles = sum(blur_along(rng.standard_normal(shape, np.float32), 6, 3, rng.uniform(0, 360, n)) for _ in range(3))
    needles /= needles.std(axis=(-2, -1), keepdims=True)
    level = rng.uniform(*_LEVEL, size=(n, 1, 1, 1)).astype(np.float32)
    ice = resize_like(level + _CONTRAST * needles, images)
    return keep * images + strength * (ice * paint(_ICE, images)).clip(0, 1)


def fog(images: np.ndarray, rng: Generator, strength: float, decay: float) -> np.ndarray:
    """Add `strength` times a plasma fractal, scaled so that the brightest pixel can keep its brightness."""
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    haze = resize_like(plasma(len(images), decay, rng), images)
    return (images + strength * haze) * brightest / (brightest + strength)


def plasma(n: int, decay: float, rng: Generator) -> np.ndarray:
    """Return n plasma fractals (n, 1, 32, 32) in [0, 1] by the diamond–square algorithm on a torus.

    Each point is the mean of its four neighbours plus uniform noise, whose amplitude falls by `decay` squared from
    one step to the next, as in CIFAR-C.
    """
    field = np.zeros((n, SIDE, SIDE))
    step, amplitude = SIDE, 1.0
    while step > 1:
        half = step // 2
        corners = field[:, ::step, ::step]
        middles = corners + np.roll(corners, -1, axis=1)
        middles = (middles + np.roll(middles, -1, axis=2)) / 4
        middles = middles + rng.uniform(-amplitude, amplitude, middles.shape)
        field[:, half::step, half::step] = middles
        for axis, rows, columns in ((1, 0, half), (2, half, 0)):
            neighbours = corners + np.roll(corners, -1, axis=3 - axis) + middles + np.roll(middles, 1, axis=axis)
            field[:, rows::step, columns::step] = neighbours / 4 + rng.uniform(-amplitude, amplitude, corners.shape)
        step, amplitude = half, amplitude / decay**2
    field -= field.min(axis=(1, 2), keepdims=True)
    return (field / field.max(axis=(1, 2), keepdims=True))[:, None].astype(np.float32)


def spatter(images: np.ndarray, rng: Generator, *severity: float) -> np.ndarray:
    """Splash the image with drops, blurred noise above a threshold: water adds light, mud covers the image.

    Args:
        images: to be splashed.
        rng: source of the drops.
        severity: mean, standard deviation and blur of the noise; threshold; strength, which is the maximal brightness
            of water or the blur of the rims of mud in pixels; 1 for mud and 0 for water.
    """
    mean, std, sigma, threshold, strength, mud = severity
    liquid = gaussian_blur(rng.normal(mean, std, size=(len(images), 1, SIDE, SIDE)).astype(np.float32), rng, sigma)
    if mud:
        cover = gaussian_blur((liquid > threshold).astype(np.float32), rng, strength)
        cover = resize_like(np.where(cover < 0.8, 0, cover), images)
        return images * (1 - cover) + cover * paint(MUD, images)
    levels = np.floor(255 * np.where(liquid < threshold, 0, liquid)[:, 0].clip(0, 1))
    shine = (strength * _highlights(levels))[:, None].astype(np.float32)
    return images + resize_like(shine, images) * paint(WATER, images)


def _highlights(levels: np.ndarray) -> np.ndarray:
    """Return the highlights of drops of grey `levels` (n, H, W) in 0..255, embossed by distance from rims; max 1."""
    # One distance transform for all images; the sampling keeps the nearest rim in the same image.
    depth = distance_transform_edt(~canny_edges(levels), sampling=(1000, 1, 1))
    # The offset keeps integers after the filter's rounding.
    depth = np.floor(uniform_filter(np.minimum(depth, 20), (0, 3, 3), mode="mirror") + 1e-6)
    emboss = np.array([[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]])
    relief = correlate(equalize_histogram(depth), emboss, mode="mirror").clip(0, 255)
    light = levels * np.rint(uniform_filter(relief, (0, 3, 3), mode="mirror"))
    return light / np.maximum(light.max(axis=(1, 2), keepdims=True), 1e-9)


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

    def is_largest(dy: int, dx: int) -> np.ndarray:
        before, after = (padded[:, 1 + y : 1 + y + height, 1 + x : 1 + x + width] for y, x in ((-dy, -dx), (dy, dx)))
        return (slope > before) & ((slope > after) | (slope == after) * (dy * dx == 0))  # ties on straight edges only

    flat = np.abs(down) < np.tan(np.pi / 8) * np.abs(right)
    steep = np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(right)
    cases = [flat, steep, (right < 0) == (down < 0)]
    top = np.select(cases, [is_largest(0, 1), is_largest(1, 0), is_largest(1, 1)], is_largest(1, -1))
    return binary_propagation(top & (slope > high), structure=np.ones((1, 3, 3)), mask=top & (slope > low))


def equalize_histogram(values: np.ndarray) -> np.ndarray:
    """Equalize the histogram of each image of integers (n, H, W) in 0..255, as OpenCV does."""
    n, height, width = values.shape
    levels = values.astype(np.int64).reshape(n, -1)
    counts = np.stack([np.bincount(image, minlength=256) for image in levels])
    lowest = np.take_along_axis(counts, levels.min(axis=1, keepdims=True), axis=1)
    rest = np.maximum(height * width - lowest, 1)  # an image of one level becomes 0
    table = np.rint(255 * (counts.cumsum(axis=1) - lowest).clip(0) / rest)
    return np.take_along_axis(table, levels, axis=1).reshape(values.shape)
