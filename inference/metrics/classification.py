"""Accuracy, calibration and misclassification detection from predictive probabilities.

Every function takes ``probs (n, classes)``, floating point, already averaged over draws, rows summing to 1,
and ``labels (n,)``, integer class indices. The prediction is the most probable class (the lowest index among
equals) and its probability is the *confidence*. Everything is computed on the CPU in float64, whatever the
inputs' device and dtype, so that confidences near 1 keep their order; torchmetrics sums in float32, so
AUROC, AUPR and MCC are good to about six digits. Values are fractions; :data:`~probattn.inference.metrics.display.DISPLAY` has the
papers' scaling.

All raise ``ValueError`` on malformed inputs: wrong shapes or dtypes, no examples, fewer than two classes,
labels out of range, probabilities that are not finite, lie outside [−1e-4, 1 + 1e-4], or have a row that
does not sum to 1 within 1e-3 (in bfloat16 7.8e-3, its spacing at 1). Probabilities just outside [0, 1] are
clamped.
"""

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_matthews_corrcoef

from probattn.inference.metrics.calibration import ece, mce
from probattn.inference.metrics.inputs import checked, confidence_and_correct, is_constant
from probattn.inference.metrics.selective import aupr_error, aupr_success, aurc, auroc, eaurc, fpr95


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
