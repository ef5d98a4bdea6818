"""Metrics of a prediction by the kind of its likelihood, with their display in tables."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.inference.metrics import classification, ranking, regression
from probattn.inference.prediction.result import Prediction


class MetricDisplay(NamedTuple):
    """Display of a metric: its ``title``, the factor ``scale`` it is multiplied by in tables, and its direction."""

    title: str
    scale: float
    higher_is_better: bool


DISPLAY: dict[str, MetricDisplay] = {
    "accuracy": MetricDisplay("ACC", 100, higher_is_better=True),
    "mcc": MetricDisplay("MCC", 100, higher_is_better=True),
    "aurc": MetricDisplay("AURC", 1000, higher_is_better=False),
    "eaurc": MetricDisplay("E-AURC", 1000, higher_is_better=False),
    "auroc": MetricDisplay("AUROC", 100, higher_is_better=True),
    "aupr_success": MetricDisplay("AUPR-Success", 100, higher_is_better=True),
    "aupr_error": MetricDisplay("AUPR-Error", 100, higher_is_better=True),
    "fpr95": MetricDisplay("FPR95", 100, higher_is_better=False),
    "ece": MetricDisplay("ECE", 100, higher_is_better=False),
    "mce": MetricDisplay("MCE", 100, higher_is_better=False),
    "nll": MetricDisplay("NLL", 10, higher_is_better=False),
    "brier": MetricDisplay("Brier", 100, higher_is_better=False),
}
"""Keys of :func:`evaluate` for classes, in its order, with their display in the papers' tables."""

MONITORS: dict[str, bool] = {
    "log_prob": True,
    **{name: metric.higher_is_better for name, metric in DISPLAY.items()},
    **dict.fromkeys(("rps", "rmse", "mae", "crps", "pit_error"), False),
    **{f"width_{100 * level:g}": False for level in regression.INTERVAL_LEVELS},
    **dict.fromkeys(("label_accuracy", "exact_match", "label_auroc"), True),
    **dict.fromkeys(("label_nll", "label_brier"), False),
}
"""Metrics that may choose the best epoch: True if higher is better. Coverage has no direction."""


def evaluate(prediction: Prediction | Tensor, labels: Tensor | None = None) -> dict[str, float]:
    """Compute the metrics that suit a prediction's likelihood, unscaled.

    Classes: those of :data:`DISPLAY`, and ``rps`` if they are ordered. Binary labels: :func:`label_metrics`.
    Numbers: :func:`probattn.inference.metrics.regression.evaluate`. With a label per token, metrics are over all real
    tokens.

    Args:
        prediction: of :func:`~probattn.inference.predict`, or mean probabilities of classes ``(n, classes)``.
        labels: ``(n, ...)``; by default those that the prediction holds, which are those of its loader.

    Raises:
        ValueError: no labels; invalid inputs.
    """
    if not isinstance(prediction, Prediction):
        prediction = Prediction(probs=torch.as_tensor(prediction))
    labels = prediction.labels if labels is None else torch.as_tensor(labels)
    if labels is None:
        raise ValueError("metrics need labels: evaluate(prediction, labels), or predict batches (x, y)")
    if prediction.mask is not None:
        prediction = replace(prediction, labels=labels).tokens()
        labels = prediction.labels
    if prediction.probs is not None:
        probs, names = prediction.probs.detach().cpu(), [*DISPLAY, "rps"] if prediction.ordered else DISPLAY
        return {name: getattr(classification, name)(probs, labels) for name in names}
    if prediction.is_binary:
        return label_metrics(*(values.reshape(len(labels), -1) for values in (prediction.mean, labels)))
    return regression.evaluate(prediction, labels)


def label_metrics(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute the metrics of several binary labels per example, means over labels.

    All but ``exact_match`` use the marginals of the labels, not their joint distribution.

    - ``label_accuracy``: share of labels predicted correctly at the threshold ½ (one minus the Hamming loss).
    - ``exact_match``: share of examples with all labels correct (subset accuracy).
    - ``label_nll``: negative log-likelihood of a label, in nats; probabilities are clamped to 1e-38.
    - ``label_brier``: mean squared error of a label's probability, 0 to 1.
    - ``label_auroc``: area under the ROC curve, over labels with both values; NaN if there is none.

    Args:
        probs: posterior predictive P(label = 1), ``(n, labels)``.
        labels: 0 or 1, of the same shape.

    Raises:
        ValueError: other shapes, no examples, probabilities outside [0, 1], or labels other than 0 and 1.
    """
    probs, labels = probs.detach().cpu().double(), labels.detach().cpu()
    binary = ((labels == 0) | (labels == 1)).all()
    if probs.shape != labels.shape or not probs.numel() or not (binary and ((probs >= 0) & (probs <= 1)).all()):
        raise ValueError("probs (examples, labels) must lie in [0, 1], with labels of the same shape that are 0 or 1")
    labels = labels.bool()
    correct = (probs > 0.5) == labels
    likelihood = torch.where(labels, probs, 1 - probs).clamp(min=torch.finfo(torch.float32).tiny)
    areas = [ranking.auroc(*column) for column in zip(probs.unbind(1), labels.unbind(1), strict=True)]
    return {
        "label_accuracy": float(correct.double().mean()),
        "exact_match": float(correct.all(-1).double().mean()),
        "label_nll": float(-likelihood.log().mean()),
        "label_brier": float((probs - labels.double()).square().mean()),
        "label_auroc": float(torch.tensor(areas, dtype=torch.float64).nanmean()),
    }
