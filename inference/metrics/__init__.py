"""Metrics of predictions: of classes in ``classes``, of several binary labels in ``binary_labels``,
of numbers in ``regression``, of OOD scores in ``ood``.

May import ``prediction``, ``distributed`` and ``io``.
"""

from dataclasses import replace

import torch
from torch import Tensor

from probattn.inference.metrics import ood, regression
from probattn.inference.metrics.binary_labels import (
    OF_LABELS,
    exact_match,
    label_accuracy,
    label_auroc,
    label_brier,
    label_metrics,
    label_nll,
)
from probattn.inference.metrics.classes import (
    OF_CLASSES,
    OF_ORDERED,
    accuracy,
    aupr_error,
    aupr_success,
    aurc,
    auroc,
    brier,
    confidence_and_correct,
    confidence_bins,
    eaurc,
    ece,
    fpr95,
    mcc,
    mce,
    nll,
    risk_coverage,
    rps,
    validate,
)
from probattn.inference.metrics.metric import Metric
from probattn.inference.metrics.regression import OF_NUMBERS
from probattn.inference.prediction.class_labels import valid_probs
from probattn.inference.prediction.result import Prediction

__all__ = [
    "MONITORS",
    "OF_CLASSES",
    "OF_LABELS",
    "OF_NUMBERS",
    "OF_ORDERED",
    "Metric",
    "accuracy",
    "aupr_error",
    "aupr_success",
    "aurc",
    "auroc",
    "brier",
    "confidence_and_correct",
    "confidence_bins",
    "eaurc",
    "ece",
    "evaluate",
    "exact_match",
    "fpr95",
    "label_accuracy",
    "label_auroc",
    "label_brier",
    "label_metrics",
    "label_nll",
    "mcc",
    "mce",
    "nll",
    "ood",
    "regression",
    "risk_coverage",
    "rps",
    "valid_probs",
    "validate",
]

MONITORS: dict[str, bool] = {"log_prob": True} | {
    name: metric.higher_is_better
    for name, metric in (OF_CLASSES | OF_ORDERED | OF_NUMBERS | OF_LABELS).items()
    if metric.higher_is_better is not None
}
"""Metrics that may choose the best epoch: True if higher is better. Coverage has no direction."""


def evaluate(prediction: Prediction | Tensor, labels: Tensor | None = None) -> dict[str, float]:
    """Compute the metrics that suit a prediction's likelihood, unscaled.

    Classes: those of :data:`OF_CLASSES`, ``rps`` if they are ordered. Binary labels:
    :func:`label_metrics`. Numbers: :func:`~probattn.inference.metrics.regression.evaluate`. With a
    label per token, metrics are over all real tokens.

    Args:
        prediction: of :func:`~probattn.inference.predict`, or mean probabilities of classes
            ``(n, classes)``.
        labels: ``(n, ...)``; by default those that the prediction holds, which are those of its
            loader.

    Raises:
        ValueError: no labels; invalid inputs.
    """
    if not isinstance(prediction, Prediction):
        prediction = Prediction(probs=torch.as_tensor(prediction))
    labels = prediction.require("labels") if labels is None else torch.as_tensor(labels)
    if prediction.mask is not None:
        prediction = replace(prediction, labels=labels).tokens()
        labels = prediction.require("labels")
    if prediction.probs is not None:
        of_kind = OF_CLASSES | OF_ORDERED if prediction.ordered else OF_CLASSES
        return {name: metric.function(prediction.probs, labels) for name, metric in of_kind.items()}
    if prediction.is_binary:
        return label_metrics(
            prediction.require("mean").reshape(len(labels), -1), labels.reshape(len(labels), -1)
        )
    return regression.evaluate(prediction, labels)
