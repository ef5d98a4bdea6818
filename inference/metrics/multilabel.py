"""Multilabel metrics: several binary labels per example.

All functions take ``probs (n, labels)``, the posterior predictive P(label = 1), and labels of the same shape, 0 or 1.
Except for :func:`exact_match` they use the marginals of the labels, not their joint distribution.
"""

import torch
from torch import Tensor

from probattn.inference.metrics import ranking


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of labels predicted correctly at the threshold ½, 0 to 1 (one minus the Hamming loss)."""
    probs, labels = _validate(probs, labels)
    return float(((probs > 0.5) == labels).double().mean())


def exact_match(probs: Tensor, labels: Tensor) -> float:
    """Share of examples with all labels correct, 0 to 1 (subset accuracy)."""
    probs, labels = _validate(probs, labels)
    return float(((probs > 0.5) == labels).all(-1).double().mean())


def nll_per_label(probs: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of each label ``(labels,)``, in nats; probabilities are clamped to 1e-38."""
    probs, labels = _validate(probs, labels)
    return -torch.where(labels, probs, 1 - probs).clamp(min=torch.finfo(torch.float32).tiny).log().mean(0)


def brier_per_label(probs: Tensor, labels: Tensor) -> Tensor:
    """Brier score of each label ``(labels,)``: mean squared error of its probability, 0 to 1."""
    probs, labels = _validate(probs, labels)
    return (probs - labels.double()).square().mean(0)


def auroc_per_label(probs: Tensor, labels: Tensor) -> Tensor:
    """Area under the ROC curve of each label ``(labels,)``; NaN if it is the same in all examples."""
    probs, labels = _validate(probs, labels)
    columns = zip(probs.unbind(1), labels.unbind(1), strict=True)
    return torch.tensor([ranking.auroc(column, truth) for column, truth in columns], dtype=torch.float64)


def evaluate(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute all metrics: ``label_accuracy``, ``exact_match``, ``label_nll``, ``label_brier`` and ``label_auroc``.

    Those per label are averaged over labels; ``label_auroc`` over labels with both values, NaN if there is none.
    """
    return {
        "label_accuracy": accuracy(probs, labels),
        "exact_match": exact_match(probs, labels),
        "label_nll": float(nll_per_label(probs, labels).mean()),
        "label_brier": float(brier_per_label(probs, labels).mean()),
        "label_auroc": float(auroc_per_label(probs, labels).nanmean()),
    }


def _validate(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities in float64 and labels as booleans, on the CPU."""
    if probs.dim() != 2 or probs.shape != labels.shape or not probs.numel():
        raise ValueError(
            "probs and labels must have the same shape (examples, labels), with one of each or more; got "
            f"{tuple(probs.shape)} and {tuple(labels.shape)}"
        )
    probs, labels = probs.detach().cpu().double(), labels.detach().cpu()
    if not ((probs >= 0) & (probs <= 1)).all():
        raise ValueError("probabilities must lie in [0, 1] and not be NaN")
    if not ((labels == 0) | (labels == 1)).all():
        raise ValueError("labels must be 0 or 1")
    return probs, labels.bool()
