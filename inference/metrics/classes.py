"""Metrics of class probabilities.

Functions take ``probs (n, classes)``, floating point, averaged over posterior samples, with rows
that sum to 1, and ``labels (n,)``, integer class indices. The predicted class is the most probable
one (the lowest index among ties); its probability is the *confidence*. Metrics are computed on the
CPU in float64. Values are fractions.

All raise ``ValueError`` for invalid inputs, see :func:`validate`.
"""

import torch
from torch import Tensor

from probattn.inference.metrics import ranking
from probattn.inference.metrics.metric import table
from probattn.inference.prediction.class_labels import class_labels, valid_probs


def validate(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return valid probs and labels as int64, both on the CPU and detached.

    Raises:
        ValueError: as :func:`valid_probs`; labels of another shape, not integers or out of range.
    """
    probs = valid_probs(probs)
    return probs, class_labels(labels, examples=len(probs), classes=probs.shape[1]).cpu()


def confidence_and_correct(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the top label's probability ``(n,)``, float64, and True for correct predictions
    ``(n,)``."""
    probs, labels = validate(probs, labels)
    confidence, predicted = probs.max(1)
    return confidence, predicted == labels


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of correct predictions, 0 to 1."""
    return float(confidence_and_correct(probs, labels)[1].double().mean())


def mcc(probs: Tensor, labels: Tensor) -> float:
    """Matthews correlation coefficient (MCC) of predictions and labels over the whole set, −1 to 1,
    by scikit-learn.

    0 if predictions or labels are all of one class.
    """
    from sklearn.metrics import matthews_corrcoef  # here, since its import takes a second

    probs, labels = validate(probs, labels)
    predicted = probs.argmax(1)
    constant = (predicted == predicted[0]).all() or (labels == labels[0]).all()
    return 0.0 if constant else float(matthews_corrcoef(labels.numpy(), predicted.numpy()))


def nll(probs: Tensor, labels: Tensor) -> float:
    """Negative log-likelihood: mean −log probability of the label, in nats, 0 or more.

    Probabilities are clamped to the smallest normal number of the *input's* dtype: a zero costs
    87.3 nats in float32 and bfloat16, 9.7 in float16, 708.4 in float64.
    """
    checked, labels = validate(probs, labels)
    return float(
        -checked.gather(1, labels[:, None]).clamp(min=torch.finfo(probs.dtype).tiny).log().mean()
    )


def brier(probs: Tensor, labels: Tensor) -> float:
    """Brier score, 0 to 2: squared error to the one-hot label, *summed* over classes (Brier,
    1950)."""
    probs, labels = validate(probs, labels)
    return float(
        (probs - torch.nn.functional.one_hot(labels, probs.shape[1])).square().sum(1).mean()
    )


def rps(probs: Tensor, labels: Tensor) -> float:
    """Ranked probability score Σ_k (P(Y ≤ k) − [y ≤ k])² of ordered classes, mean over examples
    (Epstein, 1969).

    0 to classes − 1: for a prediction with probability 1, the number of classes it is off by; a
    discrete CRPS.
    """
    probs, labels = validate(probs, labels)
    below = torch.arange(probs.shape[1]) >= labels[:, None]
    return float((probs.cumsum(1) - below.double())[:, :-1].square().sum(1).mean())


def ece(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Expected calibration error of the top label, 0 to 1 (Naeini et al., 2015).

    ``Σ_b (n_b / n) |accuracy_b − mean confidence_b|`` over ``bins`` intervals of equal width,
    closed on the left, the last one on both sides. Edges b / bins are rounded to the dtype of
    ``probs``, so that a confidence computed as b / bins lies on its edge in any precision.
    """
    share, gap = _calibration_gaps(probs, labels, bins)
    return float((share * gap).sum())


def mce(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Maximum calibration error of the top label, 0 to 1 (Naeini et al., 2015): the largest gap of
    :func:`ece`.

    A bin with one example weighs as much as a full one.
    """
    return float(_calibration_gaps(probs, labels, bins)[1].max())


def confidence_bins(confidence: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
    """Return the bin of each confidence ``(n,)``, in probabilities of a dtype."""
    edges = (torch.arange(1, bins, dtype=torch.float64) / bins).to(dtype).double()
    return torch.bucketize(confidence, edges, right=True)


def _calibration_gaps(probs: Tensor, labels: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Share of the examples and ``|accuracy − mean confidence|`` per bin ``(bins,)``; 0 for empty
    bins."""
    confidence, correct = confidence_and_correct(probs, labels)
    index = confidence_bins(confidence, bins, probs.dtype)
    count = torch.bincount(index, minlength=bins)
    difference = torch.bincount(index, weights=correct.double() - confidence, minlength=bins)
    return count.double() / len(confidence), (difference / count.clamp(min=1)).abs()


def risk_coverage(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Risk–coverage curve of selective classification (Geifman & El-Yaniv, 2017).

    At k = 1…n, coverage k/n is the share of examples accepted, the most confident first, and risk
    is the error rate among them. Each example of a group with equal confidence counts as the
    group's mean error: the risk is its exact expectation over random tie-breaking, and does not
    depend on the order of the examples.

    Returns:
        coverage ``(n,)``, ascending to 1, and risk ``(n,)``, in [0, 1]; float64, on the CPU.
    """
    risk = ranking.risks(*confidence_and_correct(probs, labels))
    return torch.arange(1, len(risk) + 1, dtype=torch.float64) / len(risk), risk


def aurc(probs: Tensor, labels: Tensor) -> float:
    """Area under the risk–coverage curve, 0 to 1: the mean of the n risks (Geifman & El-Yaniv,
    2017)."""
    return float(risk_coverage(probs, labels)[1].mean())


def eaurc(probs: Tensor, labels: Tensor) -> float:
    """Excess AURC, 0 to 1: AURC minus that of the same errors ranked ideally, all of them last.

    Geifman et al., "Bias-reduced uncertainty estimation for deep neural classifiers" (2019). The
    ideal is computed by sorting, not by the paper's approximation r + (1 − r) ln(1 − r), so a
    perfect ranking has exactly 0.
    """
    _, correct = confidence_and_correct(probs, labels)
    return aurc(probs, labels) - float(ranking.risks(correct.double(), correct).mean())


def auroc(probs: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of detecting *correct* predictions (the positive class) by high
    confidence.

    The probability that a correct prediction has more confidence than a wrong one; ties count half.
    0 to 1, 0.5 for uninformative confidence; NaN if predictions are all correct or all wrong.
    """
    return ranking.auroc(*confidence_and_correct(probs, labels))


def aupr_success(probs: Tensor, labels: Tensor) -> float:
    """Average precision of detecting *correct* predictions (the positive class) by high confidence.

    0 to 1, the accuracy for uninformative confidence; NaN if predictions are all correct or all
    wrong.
    """
    return ranking.average_precision(*confidence_and_correct(probs, labels))


def aupr_error(probs: Tensor, labels: Tensor) -> float:
    """Average precision of detecting *wrong* predictions (the positive class) by low confidence.

    0 to 1, the error rate for uninformative confidence; NaN if predictions are all correct or all
    wrong.
    """
    confidence, correct = confidence_and_correct(probs, labels)
    return ranking.average_precision(-confidence, ~correct)


def fpr95(probs: Tensor, labels: Tensor) -> float:
    """False positive rate at 95 % recall: share of *wrong* predictions accepted with 95 % of the
    correct ones.

    Correct predictions are the positive class, accepted if their confidence is at or above the
    highest threshold that accepts at least 95 % of them. 0 to 1; NaN if predictions are all correct
    or all wrong.
    """
    return ranking.fpr95(*confidence_and_correct(probs, labels))


OF_CLASSES = table("classes", vars())
"""Metrics of class probabilities and labels, in the order of ``evaluate`` and of tables."""

OF_ORDERED = table("ordered", vars())
"""Those of ordered classes, in addition."""
