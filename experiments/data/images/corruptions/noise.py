"""Noise: corruptions that are independent for each channel of each pixel."""

import numpy as np


def gaussian_noise(images: np.ndarray, rng: np.random.Generator, sigma: float) -> np.ndarray:
    """Add normal noise of standard deviation `sigma`."""
    return images + sigma * rng.standard_normal(images.shape, dtype=np.float32)


def shot_noise(images: np.ndarray, rng: np.random.Generator, photons: float) -> np.ndarray:
    """Add Poisson noise, with `photons` the mean count at white: the variance is the value / `photons`."""
    return (rng.poisson(images * photons) / photons).astype(np.float32)


def impulse_noise(images: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Set a `share` of the values to 0 or 1, with equal probability."""
    draw = rng.random(images.shape, dtype=np.float32)
    return np.where(draw < share, (draw < share / 2).astype(np.float32), images)


def speckle_noise(images: np.ndarray, rng: np.random.Generator, sigma: float) -> np.ndarray:
    """Multiply by normal noise of mean 1 and standard deviation `sigma`."""
    return images * (1 + sigma * rng.standard_normal(images.shape, dtype=np.float32))
