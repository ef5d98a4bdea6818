"""Ranking of positive above negative examples by scores, by scikit-learn: ROC curve and
precision–recall curve.

``scores (n,)`` are finite, ``positive (n,)`` is boolean. Values are NaN if all examples are
positive, or none is.
"""

import math

import torch
from torch import Tensor


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: the probability that a positive example has the higher score; ties
    count half."""
    from sklearn.metrics import roc_auc_score  # here, since its import takes a second

    return (
        math.nan
        if _is_constant(positive)
        else float(roc_auc_score(positive.numpy(), scores.numpy()))
    )


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Average precision Σ (R_k − R_{k−1}) P_k over the thresholds k, P precision and R recall."""
    from sklearn.metrics import average_precision_score

    return (
        math.nan
        if _is_constant(positive)
        else float(average_precision_score(positive.numpy(), scores.numpy()))
    )


def fpr95(scores: Tensor, positive: Tensor) -> float:
    """Share of negative scores at or above the highest threshold that at least 95 % of the positive
    ones reach."""
    from sklearn.metrics import roc_curve

    if _is_constant(positive):
        return math.nan
    rates, recall, _ = roc_curve(positive.numpy(), scores.numpy(), drop_intermediate=False)
    return float(rates[recall >= 0.95].min())


def risks(scores: Tensor, positive: Tensor) -> Tensor:
    """Share of negative examples among the k with the highest scores, for k = 1…n ``(n,)``,
    float64.

    Each example of a group with equal scores counts as the group's mean: the exact expectation over
    random ties.
    """
    scores, order = scores.sort(descending=True)
    _, group, size = torch.unique_consecutive(scores, return_inverse=True, return_counts=True)
    negative = torch.zeros(len(size), dtype=torch.float64).index_add_(
        0, group, (~positive[order]).double()
    )
    return (negative / size)[group].cumsum(0) / torch.arange(1, len(scores) + 1)


def _is_constant(positive: Tensor) -> bool:
    return bool(positive.all()) or not bool(positive.any())
