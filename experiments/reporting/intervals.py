"""Intervals of 95 % of a run's metrics, from its test examples."""

import numpy as np
from scipy.stats import binomtest

from probattn.experiments.evaluation.resampling import resampled_metrics
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.evaluation.seed_statistics import TAILS
from probattn.inference import Prediction

Interval = tuple[float, float]


def share_interval(count: int, total: int) -> Interval:
    """Return the exact binomial interval of a share (Clopper & Pearson, 1934)."""
    return tuple(binomtest(count, total).proportion_ci(method="exact"))


def metric_intervals(result: RunResult) -> dict[str, Interval]:
    """Return the intervals of a run's metrics by resampling its test examples, from a fixed seed.

    They are quantiles of the resampled metric, moved by its bias, which is large for calibration errors. The interval
    of accuracy is exact; metrics without a finite interval are left out.
    """
    prediction = Prediction(probs=result.probs, labels=result.labels) if result.numbers is None else result.numbers
    resampled = {key: values for key, values in resampled_metrics(prediction).items() if key in result.metrics}
    ends = {key: result.metrics[key] + np.quantile(values, TAILS) - values.mean() for key, values in resampled.items()}
    intervals = {key: tuple(pair.tolist()) for key, pair in ends.items() if np.isfinite(pair).all()}
    if "accuracy" in intervals:
        count = len(result.labels)
        intervals["accuracy"] = share_interval(round(result.metrics["accuracy"] * count), count)
    return intervals
