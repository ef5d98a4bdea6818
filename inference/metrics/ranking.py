"""Ranking of positive above negative examples by scores, by scikit-learn: ROC curve and
precision–recall curve.

``scores (n,)`` are finite, ``positive (n,)`` is boolean. Values are NaN if all examples are
positive, or none is.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: the probability that a positive example has the higher score; ties
    count half."""
    from sklearn.metrics import roc_auc_score  # here, since its import takes a second

    return _of_both(roc_auc_score, scores, positive)


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Average precision Σ (R_k − R_{k−1}) P_k over the thresholds k, P precision and R recall."""
    from sklearn.metrics import average_precision_score

    return _of_both(average_precision_score, scores, positive)


def fpr95(scores: Tensor, positive: Tensor) -> float:
    """Share of negative scores at or above the highest threshold that at least 95 % of the positive
    ones reach."""
    return _of_both(_smallest_rate, scores, positive)


def _smallest_rate(positive: np.ndarray, scores: np.ndarray) -> float:
    from sklearn.metrics import roc_curve

    rates, recall, _ = roc_curve(positive, scores, drop_intermediate=False)
    return rates[recall >= 0.95].min()


def _of_both(function: Callable[..., float], scores: Tensor, positive: Tensor) -> float:
    """Return a function of positive and negative examples, NaN if there is only one kind."""
    if positive.all() or not positive.any():
        return math.nan
    return float(function(positive.numpy(), scores.numpy()))


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
