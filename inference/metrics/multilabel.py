"""Metrics of several binary labels per example, from their predictive probabilities.

Every function takes ``probs (n, labels)``, the mean over draws of P(label = 1), and labels of that shape, 0 or 1.
Probabilities and answers of labels are looked at one by one: none knows how labels of one example go together.
"""

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of all labels that are right at the threshold ½, 0 to 1 (one minus the Hamming loss)."""
    probs, labels = _checked(probs, labels)
    return float(((probs > 0.5) == labels).double().mean())


def exact_match(probs: Tensor, labels: Tensor) -> float:
    """Share of examples with all labels right, 0 to 1."""
    probs, labels = _checked(probs, labels)
    return float(((probs > 0.5) == labels).all(-1).double().mean())


def nll_per_label(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log probability of each label ``(labels,)``, in nats; a zero counts as 1e-38."""
    probs, labels = _checked(probs, labels)
    return -torch.where(labels, probs, 1 - probs).clamp(min=torch.finfo(torch.float32).tiny).log().mean(0)


def brier_per_label(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared distance of the probability to each label ``(labels,)``, 0 to 1."""
    probs, labels = _checked(probs, labels)
    return (probs - labels.double()).square().mean(0)


def auroc_per_label(probs: Tensor, labels: Tensor) -> Tensor:
    """Area under the ROC curve of each label ``(labels,)``; NaN of one that is the same in all examples."""
    probs, labels = _checked(probs, labels)
    columns = zip(probs.unbind(1), labels.unbind(1), strict=True)
    return torch.stack([_auroc(column, truth) for column, truth in columns])


def evaluate(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """All metrics, the means over labels: ``label_accuracy``, ``exact_match``, ``label_nll``, ``label_brier``.

    And ``label_auroc``, the mean over the labels that have both values, NaN where none has.
    """
    return {
        "label_accuracy": accuracy(probs, labels),
        "exact_match": exact_match(probs, labels),
        "label_nll": float(nll_per_label(probs, labels).mean()),
        "label_brier": float(brier_per_label(probs, labels).mean()),
        "label_auroc": float(auroc_per_label(probs, labels).nanmean()),
    }


def _auroc(probs: Tensor, labels: Tensor) -> Tensor:
    if labels.all() or not labels.any():
        return torch.tensor(torch.nan, dtype=torch.float64)
    ranks = probs.unique(return_inverse=True)[1].double() / len(probs)  # torchmetrics computes in float32
    return binary_auroc(ranks, labels.long()).double()


def _checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities in float64 and labels as booleans, on the CPU."""
    if probs.dim() != 2 or probs.shape != labels.shape or not probs.numel():
        raise ValueError(
            "needs probabilities and labels of the same shape (examples, labels), with one of each or more; got "
            f"{tuple(probs.shape)} and {tuple(labels.shape)}"
        )
    probs, labels = probs.detach().cpu().double(), labels.detach().cpu()
    if not ((probs >= 0) & (probs <= 1)).all():
        raise ValueError("probabilities must lie in [0, 1] and not be NaN")
    if not ((labels == 0) | (labels == 1)).all():
        raise ValueError("labels must be 0 or 1")
    return probs, labels.bool()
