"""Intervals over test examples: exact for shares, by resampling for other metrics, paired for two
runs (bootstrap); also over seeds."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from probattn.experiments.evaluation.kept_predictions import example_frame
from probattn.experiments.evaluation.seed_statistics import TAILS
from probattn.inference import Prediction

RESAMPLES = 300
BINS = 15
NUMBERS = ("squared_error", "absolute_error", "crps", "log_prob", "width_90")
"""Columns of examples whose labels are numbers."""
Values = dict[str, np.ndarray]
"""Metric → its values ``(r,)`` on r resamples."""


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
    for key, values in resampled_metrics(example_frame(prediction)).items():
        if key in metrics and not np.isnan(values).all():
            low, high = metrics[key] + np.nanquantile(values, TAILS) - np.nanmean(values)
            intervals[key] = float(low), float(high)
    if "accuracy" in intervals:
        right = round(metrics["accuracy"] * len(prediction))
        intervals["accuracy"] = share_interval(right, len(prediction))
    return {key: ends for key, ends in intervals.items() if np.isfinite(ends).all()}


def resampled_metrics(examples: pd.DataFrame, counts: np.ndarray | None = None) -> Values:
    """Return metrics of examples with labels that are drawn with replacement.

    They are the errors of numbers, and of classes ``accuracy``, ``mcc``, ``nll``, ``brier``,
    ``ece``, ``aurc``, ``auroc`` and the ``refinement`` of the NLL where it is known. Equal
    confidences of distinct examples count in the order of the data, where the metrics average over
    their orders.

    Args:
        examples: as :func:`~probattn.experiments.evaluation.kept_predictions.example_frame` returns
            them, n rows.
        counts: how often each is drawn, ``(r, n)``; None draws n of them.
    """
    if counts is None:
        counts = draw_counts(len(examples))
    weights = counts / counts.sum(1, keepdims=True)
    if "confidence" not in examples:
        return _of_numbers(examples, weights)
    confidence = examples["confidence"].to_numpy(dtype=float)
    correct = (examples["predicted"] == examples["label"]).to_numpy()
    # |Σ_b accuracy_b − confidence_b| of the examples of each bin, summed over bins.
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.eye(BINS)[bins] * (correct - confidence)[:, None]
    order = np.argsort(-confidence, kind="stable")
    errors = ~correct[order]
    values = {
        "accuracy": weights @ correct,
        "mcc": _mcc(examples, weights),
        "auroc": _auroc(errors, weights[:, order]),
        "nll": weights @ -examples["log_prob"].to_numpy(dtype=float),
        "brier": weights @ examples["brier"].to_numpy(dtype=float),
        "ece": abs(weights @ gaps).sum(1),
        "aurc": np.array([_aurc(np.repeat(errors, row)) for row in counts[:, order]]),
    }
    if "refined_log_prob" in examples:
        values["refinement"] = weights @ -examples["refined_log_prob"].to_numpy(dtype=float)
    return values


def _mcc(examples: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return the Matthews correlation of answers and labels of several classes (Gorodkin, 2004)."""
    classes = pd.CategoricalDtype(np.unique(examples[["label", "predicted"]]))
    # Shares of the labels and of the answers, (r, classes).
    truth = weights @ pd.get_dummies(examples["label"].astype(classes)).to_numpy(dtype=float)
    answers = weights @ pd.get_dummies(examples["predicted"].astype(classes)).to_numpy(dtype=float)
    covariance = weights @ (examples["predicted"] == examples["label"]) - (truth * answers).sum(1)
    variances = (1 - (truth**2).sum(1)) * (1 - (answers**2).sum(1))
    has_classes = variances > 1e-12  # more than one, up to rounding
    norms = np.sqrt(np.where(has_classes, variances, 1.0))
    return np.where(has_classes, covariance / norms, 0.0)


def _auroc(errors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the probability that a right answer is more confident than a wrong one, NaN without
    both.

    Args:
        errors: of the examples, the most confident first.
        weights: of the examples in that order, ``(r, n)``.
    """
    wrong = weights * errors
    right = weights * ~errors
    # Of each right answer the weight of the wrong ones that are less confident.
    below = wrong.sum(1, keepdims=True) - wrong.cumsum(1)
    pairs = wrong.sum(1) * right.sum(1)
    return np.divide(
        (right * below).sum(1), pairs, out=np.full(len(weights), np.nan), where=pairs > 0
    )


def _aurc(errors: np.ndarray) -> float:
    """Return the mean error rate of the k most confident examples over all k.

    Args:
        errors: of the examples, the most confident first.
    """
    risks = errors.cumsum() / np.arange(1, len(errors) + 1)
    return float(risks.mean())


def _of_numbers(examples: pd.DataFrame, weights: np.ndarray) -> Values:
    means = {name: weights @ examples[name].to_numpy(dtype=float) for name in NUMBERS}
    return {
        "rmse": np.sqrt(means["squared_error"]),
        "mae": means["absolute_error"],
        "crps": means["crps"],
        "nll": -means["log_prob"],
        "width_90": means["width_90"],
    }
