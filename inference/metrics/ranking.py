"""Ranking of positive above negative examples by scores: ROC curve and precision–recall curve.

``scores (n,)`` are finite; equal scores share one threshold. ``positive (n,)`` is boolean. Counts are exact integers,
so the results are those of float64 for any n.
"""

import math

import torch
from torch import Tensor


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: the probability that a positive example has the higher score; ties count half.

    NaN if all examples are positive, or none is.
    """
    true, accepted = _accepted(scores, positive)
    false = accepted - true
    pairs = int(true[-1]) * int(false[-1])
    if not pairs:
        return math.nan
    zero = torch.zeros(1, dtype=torch.long)
    heights = true + torch.cat([zero, true[:-1]])  # twice the mean height of each trapezium
    return int((false.diff(prepend=zero) * heights).sum()) / (2 * pairs)


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Average precision Σ (R_k − R_{k−1}) P_k over the thresholds k, P precision and R recall.

    NaN if all examples are positive, or none is.
    """
    true, accepted = _accepted(scores, positive)
    if true[-1] in (0, accepted[-1]):
        return math.nan
    found = true.diff(prepend=torch.zeros(1, dtype=torch.long)).double()
    return float((found * true / accepted).sum() / true[-1])


def fpr_at_95_tpr(positive: Tensor, negative: Tensor) -> float:
    """Share of ``negative`` scores at or above the highest threshold that at least 95 % of ``positive`` reach."""
    needed = math.ceil(95 * len(positive) / 100)
    threshold = positive.sort(descending=True).values[needed - 1]
    return float((negative >= threshold).double().mean())


def _accepted(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of positive and of all examples at or above each distinct score, the highest first, int64."""
    scores, order = scores.sort(descending=True)
    accepted = torch.unique_consecutive(scores, return_counts=True)[1].cumsum(0)
    return positive[order].cumsum(0)[accepted - 1], accepted
