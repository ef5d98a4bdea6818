"""Bootstrap over seeds and examples."""

import numpy as np

RESAMPLES = 300


def draw_counts(number: int, *, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Return how often each of n examples is drawn in n draws with replacement, ``(r, n)``."""
    draws = np.random.default_rng(seed).integers(number, size=(resamples, number))
    return np.stack([np.bincount(row, minlength=number) for row in draws])


def over_seeds(values: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return the mean over seeds that are drawn with replacement, for each draw of the examples.

    Rows with the same seeds get the same draws, so that their differences are paired.

    Args:
        values: a metric of each seed on r draws of the examples, ``(seeds, r)``. Seeds with one
            test set share the draws, since an example is as hard for all of them.
        seed: of the draws.

    Returns:
        ``(r,)``.
    """
    number, replicates = values.shape
    drawn = np.random.default_rng(seed).integers(number, size=(number, replicates))
    return np.take_along_axis(values, drawn, axis=0).mean(0)
