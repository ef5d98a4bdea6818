"""Intervals over test examples: exact for shares, by resampling for other metrics, paired for two
runs (bootstrap)."""

from collections.abc import Mapping

import numpy as np
from scipy.stats import binomtest
from torch.nn.functional import one_hot

from probattn.experiments.evaluation.seed_statistics import TAILS
from probattn.inference import Prediction
from probattn.inference.metrics import confidence_and_correct, regression

RESAMPLES = 300
BINS = 15
Values = dict[str, np.ndarray]
"""Metric → its values ``(r,)`` on r resamples."""


def share_interval(count: int, total: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share (Clopper & Pearson, 1934)."""
    low, high = map(float, binomtest(count, total).proportion_ci(method="exact"))
    return low, high


def metric_intervals(
    prediction: Prediction, metrics: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the 95 % intervals of metrics of a prediction with labels; those without a finite one
    are left out.

    They are quantiles of the resampled metric, moved by its bias, which is large for calibration
    errors. The interval of accuracy is exact.
    """
    intervals = {}
    for key, values in resampled_metrics(prediction).items():
        if key in metrics:
            low, high = metrics[key] + np.quantile(values, TAILS) - values.mean()
            intervals[key] = float(low), float(high)
    if "accuracy" in intervals:
        right = round(metrics["accuracy"] * len(prediction))
        intervals["accuracy"] = share_interval(right, len(prediction))
    return {key: ends for key, ends in intervals.items() if np.isfinite(ends).all()}


def resampled_metrics(
    prediction: Prediction, *, resamples: int = RESAMPLES, seed: int = 0
) -> Values:
    """Return metrics of a prediction with labels on examples drawn with replacement.

    They are the errors of numbers, and of classes ``accuracy``, ``nll``, ``brier``, ``ece`` and
    ``aurc``. Predictions of the same number of examples get the same draws. Equal confidences of
    distinct examples count in the order of the data, where the metrics average over their orders.
    """
    n = len(prediction)
    draws = np.random.default_rng(seed).integers(n, size=(resamples, n))
    weights = np.stack([np.bincount(row, minlength=n) for row in draws]) / n
    if prediction.probs is None:
        means = {key: weights @ errors for key, errors in _errors(prediction).items()}
        return means | {"rmse": np.sqrt(means["rmse"])}
    probs = prediction.probs.double()
    labels = prediction.require("labels")
    confidence, correct = (values.numpy() for values in confidence_and_correct(probs, labels))
    brier = (probs - one_hot(labels, probs.shape[1])).square().sum(1)
    # |Σ_b accuracy_b − confidence_b| of the examples of each bin, summed over bins.
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.eye(BINS)[bins] * (correct - confidence)[:, None]
    # Errors of each resample, the most confident example first, and their running means.
    order = np.argsort(-confidence, kind="stable")
    places = np.sort(np.argsort(order)[draws], axis=1)
    errors = ~correct[order][places]
    risks = errors.cumsum(1) / np.arange(1, n + 1)
    return {
        "accuracy": weights @ correct,
        "nll": weights @ -prediction.log_prob(labels).double().numpy(),
        "brier": weights @ brier.numpy(),
        "ece": abs(weights @ gaps).sum(1),
        "aurc": risks.mean(1),
    }


def _errors(prediction: Prediction) -> Values:
    """Return the error of each predicted number by metric, that of ``rmse`` squared, ``(n,)``."""
    labels = prediction.require("labels")
    low, high = regression.interval(prediction, level=0.9)
    errors = {
        "rmse": (prediction.require("mean") - labels).square(),
        "mae": (prediction.median - labels).abs(),
        "crps": prediction.crps(labels),
        "nll": -prediction.log_prob(labels),
        "width_90": high - low,
    }
    means = {}
    for key, error in errors.items():
        means[key] = error.double().reshape(len(labels), -1).mean(1).numpy()
    return means
