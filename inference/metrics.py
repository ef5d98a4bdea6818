"""Accuracy, calibration and misclassification detection from predictive probabilities.

:func:`evaluate_prediction` finds the metrics that belong to a prediction; those of numbers are in
:mod:`probattn.inference.regression`, of binary labels in :mod:`probattn.inference.multilabel`. Here,
every function takes ``probs (n, classes)``, floating point, already averaged over draws, rows summing to 1,
and ``labels (n,)``, integer class indices. The prediction is the most probable class (the lowest index among
equals) and its probability is the *confidence*. Everything is computed on the CPU in float64, whatever the
inputs' device and dtype, so that confidences near 1 keep their order; torchmetrics sums in float32, so
AUROC, AUPR and MCC are good to about six digits. Values are fractions; :data:`DISPLAY` has the
papers' scaling.

All raise ``ValueError`` on malformed inputs: wrong shapes or dtypes, no examples, fewer than two classes,
labels out of range, probabilities that are not finite, lie outside [−1e-4, 1 + 1e-4], or have a row that
does not sum to 1 within 1e-3 (in bfloat16 7.8e-3, its spacing at 1). Probabilities just outside [0, 1] are
clamped.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_matthews_corrcoef

from probattn.inference import multilabel, regression
from probattn.inference.answers import checked, confidence_and_correct, is_constant
from probattn.inference.calibration import ece, mce
from probattn.inference.marginals import unwrap
from probattn.inference.predicted import Prediction
from probattn.inference.selective import aupr_error, aupr_success, aurc, auroc, eaurc, fpr95, risk_coverage

__all__ = [
    "DISPLAY",
    "MONITORS",
    "Metric",
    "accuracy",
    "aupr_error",
    "aupr_success",
    "auroc",
    "aurc",
    "brier",
    "checked",
    "eaurc",
    "ece",
    "evaluate",
    "evaluate_prediction",
    "fpr95",
    "is_binary",
    "matthews",
    "mce",
    "nll",
    "risk_coverage",
    "rps",
]


@dataclass(frozen=True)
class Metric:
    """How a metric is shown: ``title``, the factor ``scale`` the papers multiply it by, and its direction."""

    title: str
    scale: float
    higher_is_better: bool


DISPLAY: dict[str, Metric] = {
    "accuracy": Metric("ACC", 100, higher_is_better=True),
    "mcc": Metric("MCC", 100, higher_is_better=True),
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

MONITORS: dict[str, bool] = {
    "log_prob": True,
    **{name: metric.higher_is_better for name, metric in DISPLAY.items()},
    "rps": False,
    **dict.fromkeys(("rmse", "mae", "crps", "pit_error"), False),
    **{f"width_{100 * level:g}": False for level in regression.LEVELS},
    **dict.fromkeys(("label_accuracy", "exact_match", "label_auroc"), True),
    **dict.fromkeys(("label_nll", "label_brier"), False),
}
"""Metrics that can choose the best epoch, each with whether higher is better. Coverage has no such direction."""


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of right predictions, 0 to 1."""
    _, correct = confidence_and_correct(probs, labels)
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


def matthews(probs: Tensor, labels: Tensor) -> float:
    """Matthews correlation coefficient of predictions and labels, −1 to 1.

    Over the whole set: a mean over batches is another number. 0 when predictions or labels are all of one
    class, as in scikit-learn: nothing correlates with a constant.
    """
    probs, labels = checked(probs, labels)
    predictions = probs.argmax(dim=1)
    # torchmetrics has its own value for constants in a binary task: 0.47 for always 1 on eight 1s and two 0s.
    if is_constant(predictions) or is_constant(labels):
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
        "mcc": matthews(probs, labels),
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


def rps(probs: Tensor, labels: Tensor) -> float:
    """Ranked probability score Σ_k (P(Y ≤ k) − [y ≤ k])² of ordered classes, mean over examples (Epstein, 1969).

    0 to classes − 1, in classes: that of a sure prediction is the number of classes it is off by, as of the CRPS.
    """
    probs, labels = checked(probs, labels)
    below = torch.arange(probs.shape[1]) >= labels[:, None]
    return float((probs.cumsum(1) - below.double())[:, :-1].square().sum(1).mean())


def evaluate_prediction(prediction: Prediction) -> dict[str, float]:
    """The metrics of a prediction that knows its labels, by the kind of its likelihood.

    Of classes :func:`evaluate`, and of ordered ones ``rps`` too; of binary labels
    :func:`probattn.inference.multilabel.evaluate`; of numbers :func:`probattn.inference.regression.evaluate`. Where
    every token has a label, over all real tokens alike.

    Raises:
        ValueError: a prediction without labels, and what those functions refuse.
    """
    if prediction.labels is None:
        raise ValueError("metrics need labels: predict batches (x, y) or (x, y, mask)")
    if prediction.mask is not None:
        prediction = prediction.tokens()
    if prediction.probs is not None:
        values = evaluate(prediction.probs, prediction.labels)
        return values | {"rps": rps(prediction.probs, prediction.labels)} if prediction.ordered else values
    if is_binary(prediction):
        return multilabel.evaluate(*(each.reshape(len(each), -1) for each in (prediction.mean, prediction.labels)))
    return regression.evaluate(prediction, prediction.labels)


def is_binary(prediction: Prediction) -> bool:
    """True for predictions of labels that are 0 or 1."""
    return bool(prediction.components) and isinstance(unwrap(prediction.components[0]), torch.distributions.Bernoulli)
