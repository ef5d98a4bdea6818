"""Metrics of several binary labels per example, of their probabilities ``(n, labels)``."""

import torch
from torch import Tensor

from probattn.inference.metrics import ranking
from probattn.inference.metrics.metric import table


def label_accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of binary labels predicted right at the threshold ½ (one minus the Hamming loss)."""
    return float(((probs > 0.5) == labels).double().mean())


def exact_match(probs: Tensor, labels: Tensor) -> float:
    """Share of examples with all binary labels right at the threshold ½ (subset accuracy)."""
    return float(((probs > 0.5) == labels).all(-1).double().mean())


def label_nll(probs: Tensor, labels: Tensor) -> float:
    """Negative log-likelihood of a binary label, in nats; probabilities are clamped to 1e-38."""
    likelihood = torch.where(labels, probs, 1 - probs)
    return float(-likelihood.clamp(min=torch.finfo(torch.float32).tiny).log().mean())


def label_brier(probs: Tensor, labels: Tensor) -> float:
    """Mean squared error of the probability of a binary label, 0 to 1."""
    return float((probs - labels.double()).square().mean())


def label_auroc(probs: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve, mean over binary labels with both values; NaN if there is none."""
    columns = zip(probs.unbind(1), labels.unbind(1), strict=True)
    areas = [ranking.auroc(*column) for column in columns]
    return float(torch.tensor(areas, dtype=torch.float64).nanmean())


OF_LABELS = table("labels", vars())
"""Metrics of several binary labels per example: of probabilities in float64 and bool labels."""


def label_metrics(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute the metrics of several binary labels per example, means over labels.

    They are those of :data:`OF_LABELS`. All but ``exact_match`` use the marginals of the labels,
    not their joint distribution.

    Args:
        probs: posterior predictive P(label = 1), ``(n, labels)``.
        labels: 0 or 1, of the same shape.

    Raises:
        ValueError: other shapes, no examples, probabilities outside [0, 1], or labels other than 0
            and 1.
    """
    probs, labels = probs.detach().cpu().double(), labels.detach().cpu()
    binary = ((labels == 0) | (labels == 1)).all()
    if (
        probs.shape != labels.shape
        or not probs.numel()
        or not (binary and ((probs >= 0) & (probs <= 1)).all())
    ):
        raise ValueError(
            "probs (examples, labels) must lie in [0, 1], with labels of the same shape that are 0 "
            "or 1"
        )
    return {name: metric.function(probs, labels.bool()) for name, metric in OF_LABELS.items()}
