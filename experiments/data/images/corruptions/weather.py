"""Weather: overlays between camera and scene, with the same random draws for all channels."""

import numpy as np

from probattn.experiments.data.images.corruptions.colour import luma, paint
from probattn.experiments.data.images.corruptions.resampling import SIDE, blur_motion, resize_like, zoom_in


def snow(
    images: np.ndarray,
    rng: np.random.Generator,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> np.ndarray:
    """Whiten a share 1 − `keep` of the image and add flakes: thresholded normal noise, enlarged and motion-blurred."""
    n = len(images)
    flakes = zoom_in(rng.normal(mean, std, size=(n, 1, SIDE, SIDE)).astype(np.float32), zoom)
    flakes = np.where(flakes < threshold, 0, flakes).clip(0, 1)
    flakes = resize_like(blur_motion(flakes, radius, sigma, rng.uniform(-135, -45, size=n)), images)
    white = np.maximum(images, 1.5 * luma(images) + 0.5)
    return keep * images + (1 - keep) * white + flakes + flakes[..., ::-1, ::-1]


# Statistics of 32-pixel crops of the photographs: mean colour over its luma, range of mean luma, standard deviation.
_FROST = (0.89, 1.02, 1.09)
_LEVEL, _CONTRAST = (0.43, 0.83), 0.085


def frost(images: np.ndarray, rng: np.random.Generator, keep: float, strength: float) -> np.ndarray:
    """Overlay needles of ice.

    The original overlays crops of five photographs, which cannot be distributed here. Instead, needles are noise
    blurred along three random lines, with the photographs' colour, brightness and contrast; either may be harder for a
    model.
    """
    n = len(images)
    needles = sum(
        blur_motion(rng.standard_normal((n, 1, SIDE, SIDE), dtype=np.float32), 6, 3, rng.uniform(0, 360, size=n))
        for _ in range(3)
    )
    needles /= needles.std(axis=(-2, -1), keepdims=True)
    level = rng.uniform(*_LEVEL, size=(n, 1, 1, 1)).astype(np.float32)
    ice = resize_like(level + _CONTRAST * needles, images)
    return keep * images + strength * (ice * paint(_FROST, images)).clip(0, 1)


def fog(images: np.ndarray, rng: np.random.Generator, strength: float, decay: float) -> np.ndarray:
    """Add `strength` times a plasma fractal, scaled so that the brightest pixel can keep its brightness."""
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    haze = resize_like(plasma(len(images), SIDE, decay, rng), images)
    return (images + strength * haze) * brightest / (brightest + strength)


def plasma(n: int, side: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """Return n plasma fractals (n, 1, side, side) in [0, 1] by the diamond–square algorithm on a torus.

    Each point is the mean of its four neighbours plus uniform noise, whose amplitude falls by `decay` squared from
    one step to the next, as in CIFAR-C. `side` is a power of two.
    """
    field = np.zeros((n, side, side))
    step, amplitude = side, 1.0
    while step > 1:
        half = step // 2
        corners = field[:, ::step, ::step]
        middles = corners + np.roll(corners, -1, axis=1)
        middles = (middles + np.roll(middles, -1, axis=2)) / 4
        middles = middles + rng.uniform(-amplitude, amplitude, middles.shape)
        field[:, half::step, half::step] = middles
        for axis, rows, columns in ((1, 0, half), (2, half, 0)):
            along = corners + np.roll(corners, -1, axis=3 - axis)
            across = middles + np.roll(middles, 1, axis=axis)
            noise = rng.uniform(-amplitude, amplitude, along.shape)
            field[:, rows::step, columns::step] = (along + across) / 4 + noise
        step, amplitude = half, amplitude / decay**2
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field[:, None].astype(np.float32)


def brightness(images: np.ndarray, rng: np.random.Generator, amount: float) -> np.ndarray:
    """Raise the value of HSV, the largest channel, by `amount`, to at most 1; hue and saturation are unchanged."""
    value = images.max(axis=1, keepdims=True)
    raised = np.minimum(value + amount, 1)
    # Colours scale with their value; black, which has no hue, becomes grey.
    return np.where(value > 0, images * (raised / np.where(value > 0, value, 1)), raised)
