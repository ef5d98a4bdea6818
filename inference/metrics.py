"""Accuracy, calibration and misclassification detection from predictive probabilities.

Every function takes ``probs (n, classes)``, floating point, already averaged over draws, rows summing to 1,
and ``labels (n,)``, integer class indices. The prediction is the most probable class (the lowest index among
equals) and its probability is the *confidence*. Everything is computed on the CPU in float64, whatever the
inputs' device and dtype, so that confidences near 1 keep their order; torchmetrics sums in float32, so
AUROC, AUPR, ECE, MCE and MCC are good to about six digits. Values are fractions; :data:`DISPLAY` has the
papers' scaling.

All raise ``ValueError`` on malformed inputs: wrong shapes or dtypes, no examples, fewer than two classes,
labels out of range, probabilities that are not finite, lie outside [−1e-4, 1 + 1e-4], or have a row that
does not sum to 1 within 1e-3 (in bfloat16 7.8e-3, its spacing at 1). Probabilities just outside [0, 1] are
clamped.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    multiclass_calibration_error,
    multiclass_matthews_corrcoef,
)

_RANGE_TOLERANCE = 1e-4
_SUM_TOLERANCE = 1e-3
_BELOW_ONE = 1 - torch.finfo(torch.float32).eps / 2


@dataclass(frozen=True)
class Metric:
    """How a metric is shown: ``title``, the factor ``scale`` the papers multiply it by, and its direction."""

    title: str
    scale: float
    higher_is_better: bool


DISPLAY: dict[str, Metric] = {
    "accuracy": Metric("ACC", 100, higher_is_better=True),
    "aurc": Metric("AURC", 1000, higher_is_better=False),
    "eaurc": Metric("E-AURC", 1000, higher_is_better=False),
    "auroc": Metric("AUROC", 100, higher_is_better=True),
    "aupr_success": Metric("AUPR-Success", 100, higher_is_better=True),
    "aupr_error": Metric("AUPR-Error", 100, higher_is_better=True),
    "fpr95": Metric("FPR95", 100, higher_is_better=False),
    "ece": Metric("ECE", 100, higher_is_better=False),
    "mce": Metric("MCE", 100, higher_is_better=False),
    "nll": Metric("NLL", 10, higher_is_better=False),
    "brier": Metric("Brier", 100, higher_is_better=False),
}
"""The keys of :func:`evaluate`, in its order, with the display of the papers' tables."""


def checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Validate; return probs as float64 clamped to [0, 1] and labels as int64, both on the CPU, detached."""
    if probs.ndim != 2:
        raise ValueError(
            f"probs must have shape (examples, classes), got {tuple(probs.shape)}: average over draws first, "
            "and flatten any other leading dimensions"
        )
    if labels.ndim != 1 or len(labels) != len(probs):
        raise ValueError(
            f"labels must have shape ({len(probs)},), one index per row of probs, got {tuple(labels.shape)}: "
            "pass one-hot labels as labels.argmax(-1)"
        )
    if not probs.is_floating_point():
        raise ValueError(f"probs must be floating point, got {probs.dtype}: pass probabilities, not classes")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integer class indices, got {labels.dtype}: use labels.long()")
    if len(probs) == 0:
        raise ValueError("probs and labels are empty: a metric needs at least one example")
    classes = probs.shape[1]
    if classes < 2:
        raise ValueError(
            f"probs must have at least two classes, got {classes}: "
            "for a binary task pass both, torch.cat([1 - p, p], dim=1)"
        )
    sum_tolerance = max(_SUM_TOLERANCE, torch.finfo(probs.dtype).eps)
    probs = probs.detach().cpu().double()
    labels = labels.detach().cpu().long()
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"labels must lie in 0..{classes - 1} for {classes} classes, got {labels.min()}..{labels.max()}: "
            "number classes from 0 and drop ignored examples first"
        )
    if not probs.isfinite().all():
        rows = (~probs.isfinite().all(dim=1)).sum()
        raise ValueError(f"probs must be finite, got NaN or infinity in {rows} of {len(probs)} rows: check the network")
    if probs.min() < -_RANGE_TOLERANCE or probs.max() > 1 + _RANGE_TOLERANCE:
        raise ValueError(
            f"probs must lie in [0, 1], got {probs.min():.6g}..{probs.max():.6g}: logits? apply softmax first"
        )
    sums = probs.sum(dim=1)
    worst = (sums - 1).abs().argmax()
    if (sums[worst] - 1).abs() > sum_tolerance:
        raise ValueError(
            f"rows of probs must sum to 1 within {sum_tolerance:.2g}, row {worst} sums to {sums[worst]:.6g}: "
            "independent sigmoids or unnormalised scores? normalise over classes first"
        )
    return probs.clamp(0, 1), labels


def _confidence_and_correct(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Top-label probability ``(n,)``, float64, and whether the prediction is right ``(n,)``, bool."""
    probs, labels = checked(probs, labels)
    confidence, predictions = probs.max(dim=1)
    return confidence, predictions == labels


def _is_constant(values: Tensor) -> bool:
    return bool((values == values[0]).all())


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of right predictions, 0 to 1."""
    _, correct = _confidence_and_correct(probs, labels)
    return float(correct.double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-probability of the label, in nats, 0 or more.

    A probability below the smallest normal number of the *input's* dtype counts as that number: a zero costs
    87.3 nats in float32 and bfloat16, 9.7 in float16, 708.4 in float64, never infinity.
    """
    known, labels = checked(probs, labels)
    likelihood = known.gather(1, labels.unsqueeze(1)).clamp(min=torch.finfo(probs.dtype).tiny)
    return float(-likelihood.log().mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Squared error to the one-hot label, *summed* over classes, mean over examples, 0 to 2 (Brier, 1950)."""
    probs, labels = checked(probs, labels)
    one_hot = torch.nn.functional.one_hot(labels, probs.shape[1])
    return float((probs - one_hot).square().sum(dim=1).mean())


def ece(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Expected calibration error of the top label, 0 to 1 (Naeini et al., 2015).

    Σ_b (n_b / n) |accuracy_b − mean confidence_b| over ``bins`` intervals of equal width; each holds its
    left edge, the last one 1 too.

    Raises:
        ValueError: bins is not a positive int, or as in the module's description.
    """
    return _calibration_error(probs, labels, bins=bins, norm="l1")


def mce(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Maximum calibration error of the top label, 0 to 1 (Naeini et al., 2015).

    max_b |accuracy_b − mean confidence_b| over the bins of :func:`ece`: one example weighs as much as a full
    bin.

    Raises:
        ValueError: bins is not a positive int, or as in the module's description.
    """
    return _calibration_error(probs, labels, bins=bins, norm="max")


def _calibration_error(probs: Tensor, labels: Tensor, *, bins: int, norm: Literal["l1", "max"]) -> float:
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be an int of at least 1, got {bins!r}: the papers use 15")
    probs, labels = checked(probs, labels)
    # In torchmetrics, a float32 confidence of 1 has a bin to itself, and one above 1 means "apply softmax".
    below_one = probs.clamp(max=_BELOW_ONE)
    return float(multiclass_calibration_error(below_one, labels, probs.shape[1], n_bins=bins, norm=norm))


def risk_coverage(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Risk–coverage curve of selective classification (Geifman & El-Yaniv, 2017).

    At k = 1…n, coverage k/n is the share of examples kept, the most confident first, and risk is the error
    rate among them. Equal confidences give no order, so each member of a tied group counts as the group's
    mean error: the risk is its exact expectation over random tie-breaking, and does not depend on the order
    of the examples.

    Returns:
        coverage ``(n,)``, ascending to 1, and risk ``(n,)``, in [0, 1]; float64, on the CPU.
    """
    confidence, correct = _confidence_and_correct(probs, labels)
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

    Geifman et al., "Bias-reduced uncertainty estimation for deep neural classifiers" (2019). The ideal comes
    from sorting, not from the paper's approximation r + (1 − r) ln(1 − r), so a perfect ranking gives
    exactly 0.
    """
    _, correct = _confidence_and_correct(probs, labels)
    ideal_risk = _running_mean((~correct).double().sort().values)
    return aurc(probs, labels) - float(ideal_risk.mean())


def auroc(probs: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of detecting *right* predictions (the positive class) by high confidence.

    The chance that a right prediction has more confidence than a wrong one, ties counting half. 0 to 1, 0.5
    for an uninformative confidence; NaN when predictions are all right or all wrong.
    """
    confidence, correct = _confidence_and_correct(probs, labels)
    return math.nan if _is_constant(correct) else float(binary_auroc(confidence, correct.long()))


def aupr_success(probs: Tensor, labels: Tensor) -> float:
    """Average precision of detecting *right* predictions (the positive class) by high confidence.

    0 to 1, the accuracy for an uninformative confidence; NaN when predictions are all right or all wrong.
    """
    confidence, correct = _confidence_and_correct(probs, labels)
    return math.nan if _is_constant(correct) else float(binary_average_precision(confidence, correct.long()))


def aupr_error(probs: Tensor, labels: Tensor) -> float:
    """Average precision of detecting *wrong* predictions (the positive class) by low confidence.

    0 to 1, the error rate for an uninformative confidence; NaN when predictions are all right or all wrong.
    """
    confidence, correct = _confidence_and_correct(probs, labels)
    if _is_constant(correct):
        return math.nan
    # 1 − confidence rather than −confidence: torchmetrics takes scores outside [0, 1] for logits.
    return float(binary_average_precision(1 - confidence, (~correct).long()))


def fpr95(probs: Tensor, labels: Tensor) -> float:
    """Share of *wrong* predictions accepted at the highest threshold that accepts ≥ 95 % of the right ones.

    Right predictions are the positive class; confidence at or above the threshold is accepted. 0 to 1; NaN
    when predictions are all right or all wrong.
    """
    confidence, correct = _confidence_and_correct(probs, labels)
    if _is_constant(correct):
        return math.nan
    accepted = confidence[correct].sort(descending=True).values
    needed = math.ceil(95 * len(accepted) / 100)
    return float((confidence[~correct] >= accepted[needed - 1]).double().mean())


def matthews(probs: Tensor, labels: Tensor) -> float:
    """Matthews correlation coefficient of predictions and labels, −1 to 1.

    Over the whole set: a mean over batches is another number. 0 when predictions or labels are all of one
    class, as in scikit-learn: nothing correlates with a constant.
    """
    probs, labels = checked(probs, labels)
    predictions = probs.argmax(dim=1)
    # torchmetrics has its own value for constants in a binary task: 0.47 for always 1 on eight 1s and two 0s.
    if _is_constant(predictions) or _is_constant(labels):
        return 0.0
    return float(multiclass_matthews_corrcoef(predictions, labels, num_classes=probs.shape[1]))


def evaluate(probs: Tensor, labels: Tensor, *, bins: int = 15) -> dict[str, float]:
    """All metrics of the papers' tables, keyed and ordered as :data:`DISPLAY`, as unscaled Python floats.

    Args:
        probs: mean probabilities ``(n, classes)``.
        labels: class indices ``(n,)``.
        bins: number of bins of ECE and MCE.

    Raises:
        ValueError: bins is not a positive int, or as in the module's description.
    """
    probs, labels = probs.cpu(), labels.cpu()
    return {
        "accuracy": accuracy(probs, labels),
        "aurc": aurc(probs, labels),
        "eaurc": eaurc(probs, labels),
        "auroc": auroc(probs, labels),
        "aupr_success": aupr_success(probs, labels),
        "aupr_error": aupr_error(probs, labels),
        "fpr95": fpr95(probs, labels),
        "ece": ece(probs, labels, bins=bins),
        "mce": mce(probs, labels, bins=bins),
        "nll": nll(probs, labels),
        "brier": brier(probs, labels),
    }
