"""Multilabel metrics: several binary labels per example.

``probs (n, labels)`` is the posterior predictive P(label = 1), and labels, 0 or 1, have the same shape. All but
``exact_match`` use the marginals of the labels, not their joint distribution.
"""

import torch
from torch import Tensor

from probattn.inference.metrics import ranking


def evaluate(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute all metrics, means over labels.

    - ``label_accuracy``: share of labels predicted correctly at the threshold ½ (one minus the Hamming loss).
    - ``exact_match``: share of examples with all labels correct (subset accuracy).
    - ``label_nll``: negative log-likelihood of a label, in nats; probabilities are clamped to 1e-38.
    - ``label_brier``: mean squared error of a label's probability, 0 to 1.
    - ``label_auroc``: area under the ROC curve, over labels with both values; NaN if there is none.

    Raises:
        ValueError: other shapes, no examples, probabilities outside [0, 1], or labels other than 0 and 1.
    """
    probs, labels = probs.detach().cpu().double(), labels.detach().cpu()
    if probs.dim() != 2 or probs.shape != labels.shape or not probs.numel():
        raise ValueError(f"probs and labels must be (examples, labels), got {probs.shape} and {labels.shape}")
    if not ((probs >= 0) & (probs <= 1)).all() or not ((labels == 0) | (labels == 1)).all():
        raise ValueError("probabilities must lie in [0, 1], and labels must be 0 or 1")
    labels = labels.bool()
    correct = (probs > 0.5) == labels
    likelihood = torch.where(labels, probs, 1 - probs).clamp(min=torch.finfo(torch.float32).tiny)
    columns = zip(probs.unbind(1), labels.unbind(1), strict=True)
    areas = torch.tensor([ranking.auroc(column, truth) for column, truth in columns], dtype=torch.float64)
    return {
        "label_accuracy": float(correct.double().mean()),
        "exact_match": float(correct.all(-1).double().mean()),
        "label_nll": float(-likelihood.log().mean()),
        "label_brier": float((probs - labels.double()).square().mean()),
        "label_auroc": float(areas.nanmean()),
    }
