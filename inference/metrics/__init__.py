"""Metrics of predictions: of class probabilities here, of numbers in ``regression``, of OOD scores
in ``ood``.

May import ``prediction``, ``distributed`` and ``io``.

Functions of class probabilities take ``probs (n, classes)``, floating point, averaged over
posterior samples, with rows that sum to 1, and ``labels (n,)``, integer class indices. The
predicted class is the most probable one (the lowest index among ties); its probability is the
*confidence*. Metrics are computed on the CPU in float64. Values are fractions.

All raise ``ValueError`` for invalid inputs, see :func:`validate`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from probattn.inference.metrics import ood as ood
from probattn.inference.metrics import ranking, regression
from probattn.inference.metrics.metric import Metric as Metric
from probattn.inference.prediction.class_labels import class_labels
from probattn.inference.prediction.result import Prediction


def valid_probs(probs: Tensor) -> Tensor:
    """Return probs as float64 clamped to [0, 1], on the CPU and detached.

    Raises:
        ValueError: a wrong shape or dtype; no examples; fewer than two classes; probabilities
            outside [−1e-4, 1 + 1e-4], or in rows that do not sum to 1 within 1e-3 (7.8e-3 in
            bfloat16, its spacing at 1).
    """
    if probs.ndim != 2 or probs.shape[1] < 2 or not len(probs) or not probs.is_floating_point():
        raise ValueError(
            f"probs must be (n, classes ≥ 2), means over samples, got {tuple(probs.shape)} of "
            f"{probs.dtype}"
        )
    tolerance, probs = max(1e-3, torch.finfo(probs.dtype).eps), probs.detach().cpu().double()
    valid = ((probs >= -1e-4) & (probs <= 1 + 1e-4)).all(1) & (
        (probs.sum(1) - 1).abs() <= tolerance
    )
    if not valid.all():
        row = probs[valid.int().argmin()].tolist()
        raise ValueError(
            f"rows of probs must lie in [0, 1] and sum to 1, got {row}: apply softmax to logits"
        )
    return probs.clamp(0, 1)


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


OF_CLASSES = {
    "accuracy": Metric(accuracy, "ACC", 100, True, "share of right answers"),
    "mcc": Metric(
        mcc,
        "MCC",
        100,
        True,
        "Matthews correlation of answers and truth: 0 knows nothing of the question, 100 is always "
        "right",
    ),
    "aurc": Metric(
        aurc,
        "AURC",
        1000,
        False,
        "error rate of the most confident answers, averaged over how many are accepted",
    ),
    "eaurc": Metric(
        eaurc,
        "E-AURC",
        1000,
        False,
        "AURC minus that of the best possible order of the same answers",
        in_tables=False,
    ),
    "auroc": Metric(
        auroc,
        "AUROC",
        100,
        True,
        "chance that a right answer has more confidence than a wrong one; 50 is guessing",
    ),
    "aupr_success": Metric(
        aupr_success,
        "AUPR-Success",
        100,
        True,
        "precision of confidence as a detector of right answers, averaged over recall",
        in_tables=False,
    ),
    "aupr_error": Metric(
        aupr_error,
        "AUPR-Error",
        100,
        True,
        "precision of doubt as a detector of wrong answers, averaged over recall",
        in_tables=False,
    ),
    "fpr95": Metric(
        fpr95,
        "FPR95",
        100,
        False,
        "share of the wrong answers that pass when 95 % of the right ones are accepted",
    ),
    "ece": Metric(
        ece,
        "ECE",
        100,
        False,
        "calibration error: how far confidence is from accuracy, averaged over 15 bins",
    ),
    "mce": Metric(
        mce, "MCE", 100, False, "calibration error of the worst of 15 bins", in_tables=False
    ),
    "nll": Metric(nll, "NLL", 10, False, "mean negative log-probability of the truth, in nats"),
    "brier": Metric(
        brier,
        "Brier",
        100,
        False,
        "squared distance from the probabilities to the truth, summed over classes",
    ),
}
"""Metrics of class probabilities and labels, in the order of :func:`evaluate` and of tables."""

OF_ORDERED = {
    "rps": Metric(
        rps,
        "RPS",
        1,
        False,
        "squared distance between the probabilities of at most a class, summed over classes",
        in_tables=False,
    )
}
"""Those of ordered classes, in addition."""

OF_LABELS = {
    "label_accuracy": Metric(label_accuracy, "label ACC", 100, True, "share of right labels"),
    "exact_match": Metric(
        exact_match, "exact match", 100, True, "share of examples with all labels right"
    ),
    "label_nll": Metric(
        label_nll, "label NLL", 10, False, "mean negative log-probability of a label, in nats"
    ),
    "label_brier": Metric(
        label_brier, "label Brier", 100, False, "squared error of the probability of a label"
    ),
    "label_auroc": Metric(
        label_auroc,
        "label AUROC",
        100,
        True,
        "chance that a label that is 1 has more probability than one that is 0; 50 is guessing",
    ),
}
"""Metrics of several binary labels per example: of probabilities in float64 and bool labels."""

OF_NUMBERS = regression.OF_NUMBERS
"""Metrics of a prediction of numbers and its labels."""

MONITORS: dict[str, bool] = {"log_prob": True} | {
    name: metric.higher_is_better
    for name, metric in (OF_CLASSES | OF_ORDERED | OF_NUMBERS | OF_LABELS).items()
    if metric.higher_is_better is not None
}
"""Metrics that may choose the best epoch: True if higher is better. Coverage has no direction."""


def evaluate(prediction: Prediction | Tensor, labels: Tensor | None = None) -> dict[str, float]:
    """Compute the metrics that suit a prediction's likelihood, unscaled.

    Classes: the functions of this module, ``rps`` if they are ordered. Binary labels:
    :func:`label_metrics`. Numbers: :func:`~probattn.inference.metrics.regression.evaluate`. With a
    label per token, metrics are over all real tokens.

    Args:
        prediction: of :func:`~probattn.inference.predict`, or mean probabilities of classes
            ``(n, classes)``.
        labels: ``(n, ...)``; by default those that the prediction holds, which are those of its
            loader.

    Raises:
        ValueError: no labels; invalid inputs.
    """
    if not isinstance(prediction, Prediction):
        prediction = Prediction(probs=torch.as_tensor(prediction))
    labels = prediction.labels if labels is None else torch.as_tensor(labels)
    if labels is None:
        raise ValueError(
            "metrics need labels: evaluate(prediction, labels), or predict batches (x, y)"
        )
    if prediction.mask is not None:
        prediction = replace(prediction, labels=labels).tokens()
        labels = prediction.require("labels")
    if prediction.probs is not None:
        of_kind = OF_CLASSES | OF_ORDERED if prediction.ordered else OF_CLASSES
        return {name: metric.function(prediction.probs, labels) for name, metric in of_kind.items()}
    if prediction.is_binary:
        return label_metrics(
            prediction.require("mean").reshape(len(labels), -1), labels.reshape(len(labels), -1)
        )
    return regression.evaluate(prediction, labels)


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
