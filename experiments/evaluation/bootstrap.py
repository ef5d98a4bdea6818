"""Intervals and p-values of differences over seeds *and* examples, by a paired bootstrap."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

REPLICATES = 2000


class Difference(NamedTuple):
    """Difference of a metric between two kinds of runs.

    Args:
        value: mean over the seeds that both have.
        low, high: 95 % interval over seeds and examples.
        p_value: two-sided, of no difference.
    """

    value: float
    low: float
    high: float
    p_value: float


Metric = Callable[[pd.DataFrame], float]
BySeed = Mapping[int, pd.DataFrame]
"""Seed → kept predictions, a row for each example."""


def paired_difference(
    ours: BySeed,
    theirs: BySeed,
    metric: Metric,
    *,
    same_examples: bool,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Difference:
    """Bootstrap the difference of a metric between runs that share seeds and examples.

    A replicate draws seeds with replacement, and then examples: the same ones for all seeds if they
    share a test set, since an example's difficulty is common to them; others for each seed if each
    has its own split.

    Args:
        ours, theirs: kept predictions by seed; rows of a seed are the same examples in one order.
        metric: of kept predictions.
        same_examples: all seeds have the same test set.
        replicates: number of replicates.
        seed: of the draws.

    Raises:
        ValueError: no seed in common, or other examples.
    """
    seeds = [name for name in ours if name in theirs]
    if not seeds:
        raise ValueError("no seed in common")
    sizes = {name: len(ours[name]) for name in seeds}
    if any(len(theirs[name]) != size for name, size in sizes.items()):
        raise ValueError("the runs of a seed have other numbers of examples")
    if same_examples and len(set(sizes.values())) > 1:
        raise ValueError("the seeds have other numbers of examples")

    def difference(name: int, rows: np.ndarray | slice) -> float:
        return metric(ours[name].iloc[rows]) - metric(theirs[name].iloc[rows])

    random = np.random.default_rng(seed)
    differences = np.empty(replicates)
    for replicate in range(replicates):
        drawn = random.choice(seeds, size=len(seeds))
        shared = random.integers(sizes[seeds[0]], size=sizes[seeds[0]])
        values = []
        for name in drawn:
            size = sizes[name]
            rows = shared if same_examples else random.integers(size, size=size)
            values.append(difference(name, rows))
        differences[replicate] = np.mean(values)
    value = float(np.mean([difference(name, slice(None)) for name in seeds]))
    low, high = np.quantile(differences, (0.025, 0.975)).tolist()
    return Difference(value, low, high, p_value(differences))


def p_value(differences: np.ndarray) -> float:
    """Return twice the smaller share of replicates on one side of 0, which counts for both."""
    above = 1 + int((differences >= 0).sum())
    below = 1 + int((differences <= 0).sum())
    return min(1.0, 2 * min(above, below) / (1 + len(differences)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values, whose family-wise error is at most the level (Holm, 1979).

    The k-th smallest of m is multiplied by m − k + 1, and is no less than those before it.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    sorted_values = np.asarray(p_values)[order]
    increasing = np.maximum.accumulate(np.minimum(1.0, factors * sorted_values))
    adjusted = np.empty(len(order))
    adjusted[order] = increasing
    return adjusted.tolist()
