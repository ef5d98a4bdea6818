"""Selective prediction, and misclassification detection by confidence.

Inputs and errors are those of :mod:`~probattn.inference.metrics.classification`.
"""

import math

import torch
from torch import Tensor

from probattn.inference.metrics import ranking
from probattn.inference.metrics.inputs import confidence_and_correct


def risk_coverage(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Risk–coverage curve of selective classification (Geifman & El-Yaniv, 2017).

    At k = 1…n, coverage k/n is the share of examples accepted, the most confident first, and risk is the error rate
    among them. Each example of a group with equal confidence counts as the group's mean error: the risk is its exact
    expectation over random tie-breaking, and does not depend on the order of the examples.

    Returns:
        coverage ``(n,)``, ascending to 1, and risk ``(n,)``, in [0, 1]; float64, on the CPU.
    """
    confidence, correct = confidence_and_correct(probs, labels)
    confidence, order = confidence.sort(descending=True)
    _, group, size = torch.unique_consecutive(confidence, return_inverse=True, return_counts=True)
    wrong = torch.zeros(len(size), dtype=torch.float64).index_add_(0, group, (~correct[order]).double())
    risk = _running_mean((wrong / size)[group])
    coverage = torch.arange(1, len(risk) + 1, dtype=torch.float64) / len(risk)
    return coverage, risk


def _running_mean(values: Tensor) -> Tensor:
    return values.cumsum(0) / torch.arange(1, len(values) + 1)


def aurc(probs: Tensor, labels: Tensor) -> float:
    """Area under the risk–coverage curve, 0 to 1: the mean of the n risks (Geifman & El-Yaniv, 2017)."""
    _, risk = risk_coverage(probs, labels)
    return float(risk.mean())


def eaurc(probs: Tensor, labels: Tensor) -> float:
    """Excess AURC, 0 to 1: AURC minus that of the same errors ranked ideally, all of them last.

    Geifman et al., "Bias-reduced uncertainty estimation for deep neural classifiers" (2019). The ideal is computed by
    sorting, not by the paper's approximation r + (1 − r) ln(1 − r), so a perfect ranking has exactly 0.
    """
    _, correct = confidence_and_correct(probs, labels)
    ideal_risk = _running_mean((~correct).double().sort().values)
    return aurc(probs, labels) - float(ideal_risk.mean())


def auroc(probs: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of detecting *correct* predictions (the positive class) by high confidence.

    The probability that a correct prediction has more confidence than a wrong one; ties count half. 0 to 1, 0.5 for
    uninformative confidence; NaN if predictions are all correct or all wrong.
    """
    return ranking.auroc(*confidence_and_correct(probs, labels))


def aupr_success(probs: Tensor, labels: Tensor) -> float:
    """Average precision of detecting *correct* predictions (the positive class) by high confidence.

    0 to 1, the accuracy for uninformative confidence; NaN if predictions are all correct or all wrong.
    """
    return ranking.average_precision(*confidence_and_correct(probs, labels))


def aupr_error(probs: Tensor, labels: Tensor) -> float:
    """Average precision of detecting *wrong* predictions (the positive class) by low confidence.

    0 to 1, the error rate for uninformative confidence; NaN if predictions are all correct or all wrong.
    """
    confidence, correct = confidence_and_correct(probs, labels)
    return ranking.average_precision(-confidence, ~correct)


def fpr95(probs: Tensor, labels: Tensor) -> float:
    """False positive rate at 95 % recall: share of *wrong* predictions accepted with 95 % of the correct ones.

    Correct predictions are the positive class, accepted if their confidence is at or above the highest threshold that
    accepts at least 95 % of them. 0 to 1; NaN if predictions are all correct or all wrong.
    """
    confidence, correct = confidence_and_correct(probs, labels)
    if correct.all() or not correct.any():
        return math.nan
    return ranking.fpr_at_95_tpr(confidence[correct], confidence[~correct])
