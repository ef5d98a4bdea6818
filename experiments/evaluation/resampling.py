"""Metrics on resampled test examples, for intervals of the difference of two runs (a paired bootstrap)."""

from collections.abc import Callable

import numpy as np
from torch.nn.functional import one_hot

from probattn.inference import Prediction
from probattn.inference.metrics import confidence_and_correct, regression

RESAMPLES = 1000
CHUNK = 100
"""Resamples computed at a time."""
BINS = 15
Metrics = Callable[[np.ndarray], dict[str, np.ndarray]]
"""Function of draws ``(r, n)`` to metrics ``(r,)``."""


def resampled_metrics(prediction: Prediction, *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, np.ndarray]:
    """Return metrics ``(resamples,)`` of a prediction with labels on examples drawn with replacement.

    Predictions of the same number of examples get the same draws. Equal confidences of distinct examples count in the
    order of the data, where the metrics average over their orders.
    """
    draws = np.random.default_rng(seed).integers(len(prediction), size=(resamples, len(prediction)))
    metrics = _of_numbers(prediction) if prediction.probs is None else _of_classes(prediction)
    chunks = [metrics(draws[start : start + CHUNK]) for start in range(0, resamples, CHUNK)]
    return {key: np.concatenate([chunk[key] for chunk in chunks]) for key in chunks[0]}


def _of_numbers(prediction: Prediction) -> Metrics:
    labels = prediction.labels
    parts = {"rmse": (prediction.mean - labels).square(), "mae": (prediction.median - labels).abs()}
    low, high = regression.interval(prediction, 0.9)
    parts |= {"crps": prediction.crps(labels), "nll": -prediction.log_prob(labels), "width_90": high - low}
    means = {key: part.double().reshape(len(labels), -1).mean(1).numpy() for key, part in parts.items()}
    return lambda draws: {key: part[draws].mean(1) ** (0.5 if key == "rmse" else 1) for key, part in means.items()}


def _of_classes(prediction: Prediction) -> Metrics:
    probs, labels = prediction.probs.double(), prediction.labels
    confidence, correct = (part.numpy() for part in confidence_and_correct(probs, labels))
    order = np.argsort(-confidence, kind="stable")
    place = np.argsort(order)
    truth, answers = (one_hot(classes, probs.shape[1]).numpy() for classes in (labels, probs.argmax(1)))
    means = {"nll": -prediction.log_prob(labels).double().numpy(), "brier": ((probs.numpy() - truth) ** 2).sum(1)}
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.eye(BINS)[bins] * (correct - confidence)[:, None]

    def metrics(draws: np.ndarray) -> dict[str, np.ndarray]:
        n = draws.shape[1]
        right = correct[order][np.sort(place[draws], 1)]  # the most confident first
        hits = right.cumsum(1)
        total, needed = hits[:, -1], np.ceil(0.95 * hits[:, -1])
        counts = np.stack([np.bincount(row, minlength=n) for row in draws]).astype(float)
        said, true = counts @ answers, counts @ truth
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = np.sqrt((n**2 - (said**2).sum(1)) * (n**2 - (true**2).sum(1)))
            return {key: part[draws].mean(1) for key, part in means.items()} | {
                "accuracy": total / n,
                "mcc": np.nan_to_num((n * total - (said * true).sum(1)) / spread),
                "aurc": (1 - hits / np.arange(1, n + 1)).mean(1),
                "auroc": (hits * ~right).sum(1) / (total * (n - total)),
                "fpr95": ((hits < needed[:, None]).sum(1) + 1 - needed) / (n - total),
                "ece": np.abs(counts @ gaps).sum(1) / n,
            }

    return metrics
