"""Intervals of 95 % of a run's metrics, from its test examples."""

import math

import torch
from scipy.stats import binomtest
from torch import Tensor

from probattn.experiments.evaluation.metric_display import displays
from probattn.experiments.evaluation.run_result import RunResult
from probattn.inference import metrics
from probattn.inference.metrics import regression

RESAMPLES = 200
Interval = tuple[float, float]


def share_interval(count: int, total: int) -> Interval:
    """Return the exact binomial interval of a share (Clopper & Pearson, 1934)."""
    return tuple(binomtest(count, total).proportion_ci(method="exact"))


def metric_intervals(result: RunResult) -> dict[str, Interval]:
    """Return the intervals of a run's metrics by resampling its test examples, from a fixed seed.

    They are quantiles of the resampled metric, moved by its bias, which is large for calibration errors. The interval
    of accuracy is exact; metrics without a finite interval are left out.
    """
    count = len(result.labels)
    order = torch.randint(count, (RESAMPLES, count), generator=torch.Generator().manual_seed(0))
    if result.probs is None:
        resampled = {key: values[order].mean(1) for key, values in _by_example(result).items()}
        resampled["rmse"] = resampled["rmse"].sqrt()
    else:
        pairs = [(result.probs[index], result.labels[index]) for index in order]
        names = [key for key in displays(result.metrics) if key in result.metrics]
        resampled = {key: torch.tensor([getattr(metrics, key)(*pair) for pair in pairs]) for key in names}
    intervals = {}
    for key, values in resampled.items():
        ends = values.double().quantile(torch.tensor([0.025, 0.975]).double()) - values.double().mean()
        intervals[key] = tuple((result.metrics[key] + ends).tolist())
    if "accuracy" in result.metrics:
        intervals["accuracy"] = share_interval(round(result.metrics["accuracy"] * count), count)
    return {key: interval for key, interval in intervals.items() if all(map(math.isfinite, interval))}


def _by_example(result: RunResult) -> dict[str, Tensor]:
    """Return what the metrics of numbers are means of, ``(n,)``; that of RMSE is squared."""
    prediction, labels = result.numbers, result.labels
    low, high = regression.interval(prediction, 0.9)
    parts = {"rmse": (prediction.mean - labels).double() ** 2, "mae": (prediction.median - labels).abs()}
    parts |= {"crps": prediction.crps(labels), "nll": -prediction.log_prob(labels), "width_90": high - low}
    return {key: values.reshape(len(labels), -1).double().mean(1) for key, values in parts.items()}
