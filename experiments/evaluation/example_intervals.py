"""Intervals over test examples: exact for shares, by resampling for other metrics, paired for two runs (bootstrap)."""

from collections.abc import Mapping

import numpy as np
from scipy.stats import binomtest
from torch.nn.functional import one_hot

from probattn.experiments.evaluation.seed_statistics import TAILS
from probattn.inference import Prediction
from probattn.inference.metrics import confidence_and_correct, regression

RESAMPLES = 300
BINS = 15
Interval = tuple[float, float]
Values = dict[str, np.ndarray]
"""Metric → its values ``(r,)`` on r resamples."""


def share_interval(count: int, total: int) -> Interval:
    """Return the exact 95 % interval of a share (Clopper & Pearson, 1934)."""
    return tuple(map(float, binomtest(count, total).proportion_ci(method="exact")))


def metric_intervals(prediction: Prediction, metrics: Mapping[str, float]) -> dict[str, Interval]:
    """Return the 95 % intervals of metrics of a prediction with labels; those without a finite one are left out.

    They are quantiles of the resampled metric, moved by its bias, which is large for calibration errors. The interval
    of accuracy is exact.
    """
    resampled = {key: values for key, values in resampled_metrics(prediction).items() if key in metrics}
    ends = {key: metrics[key] + np.quantile(values, TAILS) - values.mean() for key, values in resampled.items()}
    intervals = {key: tuple(pair.tolist()) for key, pair in ends.items() if np.isfinite(pair).all()}
    if "accuracy" in intervals:
        intervals["accuracy"] = share_interval(round(metrics["accuracy"] * len(prediction)), len(prediction))
    return intervals


def resampled_metrics(prediction: Prediction, *, resamples: int = RESAMPLES, seed: int = 0) -> Values:
    """Return metrics of a prediction with labels on examples drawn with replacement.

    Predictions of the same number of examples get the same draws. Equal confidences of distinct examples count in the
    order of the data, where the metrics average over their orders.
    """
    draws = np.random.default_rng(seed).integers(len(prediction), size=(resamples, len(prediction)))
    return _of_numbers(prediction, draws) if prediction.probs is None else _of_classes(prediction, draws)


def _of_numbers(prediction: Prediction, draws: np.ndarray) -> Values:
    labels = prediction.labels
    parts = {"rmse": (prediction.mean - labels).square(), "mae": (prediction.median - labels).abs()}
    low, high = regression.interval(prediction, 0.9)
    parts |= {"crps": prediction.crps(labels), "nll": -prediction.log_prob(labels), "width_90": high - low}
    errors = {key: part.double().reshape(len(labels), -1).mean(1).numpy() for key, part in parts.items()}
    return {key: error[draws].mean(1) ** (0.5 if key == "rmse" else 1) for key, error in errors.items()}


def _of_classes(prediction: Prediction, draws: np.ndarray) -> Values:
    probs, labels, n = prediction.probs.double(), prediction.labels, len(prediction)
    confidence, correct = (part.numpy() for part in confidence_and_correct(probs, labels))
    truth, answers = (one_hot(classes, probs.shape[1]).numpy() for classes in (labels, probs.argmax(1)))
    losses = {"nll": -prediction.log_prob(labels).double().numpy(), "brier": ((probs.numpy() - truth) ** 2).sum(1)}
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.eye(BINS)[bins] * (correct - confidence)[:, None]
    order = np.argsort(-confidence, kind="stable")
    right = correct[order][np.sort(np.argsort(order)[draws], 1)]  # the most confident first
    hits = right.cumsum(1)
    total, needed = hits[:, -1], np.ceil(0.95 * hits[:, -1])
    counts = np.stack([np.bincount(row, minlength=n) for row in draws]).astype(float)
    said, true = counts @ answers, counts @ truth
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt((n**2 - (said**2).sum(1)) * (n**2 - (true**2).sum(1)))
        return {key: loss[draws].mean(1) for key, loss in losses.items()} | {
            "accuracy": total / n,
            "mcc": np.nan_to_num((n * total - (said * true).sum(1)) / spread),
            "aurc": (1 - hits / np.arange(1, n + 1)).mean(1),
            "auroc": (hits * ~right).sum(1) / (total * (n - total)),
            "fpr95": ((hits < needed[:, None]).sum(1) + 1 - needed) / (n - total),
            "ece": np.abs(counts @ gaps).sum(1) / n,
        }
