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
    resampled = {
        key: values for key, values in resampled_metrics(prediction).items() if key in metrics
    }
    ends = {
        key: metrics[key] + np.quantile(values, TAILS) - values.mean()
        for key, values in resampled.items()
    }
    intervals = {key: tuple(pair.tolist()) for key, pair in ends.items() if np.isfinite(pair).all()}
    if "accuracy" in intervals:
        intervals["accuracy"] = share_interval(
            round(metrics["accuracy"] * len(prediction)), len(prediction)
        )
    return intervals


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
    probs, labels = prediction.probs.double(), prediction.require("labels")
    confidence, correct = (values.numpy() for values in confidence_and_correct(probs, labels))
    brier = (probs - one_hot(labels, probs.shape[1])).square().sum(1).numpy()
    losses = {
        "accuracy": correct,
        "nll": -prediction.log_prob(labels).double().numpy(),
        "brier": brier,
    }
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.eye(BINS)[bins] * (correct - confidence)[:, None]
    order = np.argsort(-confidence, kind="stable")
    errors = ~correct[order][np.sort(np.argsort(order)[draws], 1)]  # the most confident first
    aurc = (errors.cumsum(1) / np.arange(1, n + 1)).mean(1)
    return {key: weights @ loss for key, loss in losses.items()} | {
        "ece": abs(weights @ gaps).sum(1),
        "aurc": aurc,
    }


def _errors(prediction: Prediction) -> Values:
    """Return the error of each predicted number by metric, that of ``rmse`` squared, ``(n,)``."""
    labels = prediction.require("labels")
    low, high = regression.interval(prediction, 0.9)
    errors = {
        "rmse": (prediction.require("mean") - labels).square(),
        "mae": (prediction.median - labels).abs(),
    }
    errors |= {
        "crps": prediction.crps(labels),
        "nll": -prediction.log_prob(labels),
        "width_90": high - low,
    }
    return {
        key: error.double().reshape(len(labels), -1).mean(1).numpy()
        for key, error in errors.items()
    }
