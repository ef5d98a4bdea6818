"""Classification metrics of predictive probabilities.

All functions take ``probs (n, classes)``, floating point, averaged over posterior samples, with rows that sum to 1, and
``labels (n,)``, integer class indices. The predicted class is the most probable one (the lowest index among ties); its
probability is the *confidence*. Metrics are computed on the CPU in float64 for any device and dtype of the inputs, so
that confidences near 1 keep their order, and sums over millions of examples their digits. Values are fractions;
:data:`~probattn.inference.metrics.display.DISPLAY` has the scale of the papers' tables.

All raise ``ValueError`` for invalid inputs, see :func:`~probattn.inference.metrics.inputs.validate`.
"""

import math

import torch
from torch import Tensor

from probattn.inference.metrics.calibration import ece, mce
from probattn.inference.metrics.inputs import confidence_and_correct, validate
from probattn.inference.metrics.selective import aupr_error, aupr_success, aurc, auroc, eaurc, fpr95


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of correct predictions, 0 to 1."""
    _, correct = confidence_and_correct(probs, labels)
    return float(correct.double().mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Negative log-likelihood: mean −log probability of the label, in nats, 0 or more.

    Probabilities are clamped to the smallest normal number of the *input's* dtype: a zero costs 87.3 nats in float32
    and bfloat16, 9.7 in float16, 708.4 in float64.
    """
    checked, labels = validate(probs, labels)
    likelihood = checked.gather(1, labels.unsqueeze(1)).clamp(min=torch.finfo(probs.dtype).tiny)
    return float(-likelihood.log().mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Brier score, 0 to 2: squared error to the one-hot label, *summed* over classes (Brier, 1950)."""
    probs, labels = validate(probs, labels)
    one_hot = torch.nn.functional.one_hot(labels, probs.shape[1])
    return float((probs - one_hot).square().sum(dim=1).mean())


def matthews_corrcoef(probs: Tensor, labels: Tensor) -> float:
    """Matthews correlation coefficient (MCC) of predictions and labels, −1 to 1.

    Computed over the whole set, which differs from a mean over batches. 0 if predictions or labels are all of one
    class, as in scikit-learn.
    """
    probs, labels = validate(probs, labels)
    predictions = probs.argmax(dim=1)
    predicted, true = (classes.bincount(minlength=probs.shape[1]) for classes in (predictions, labels))
    pairs = len(labels) ** 2  # all counts are exact integers
    variances = [pairs - int(counts.square().sum()) for counts in (predicted, true)]
    covariance = len(labels) * int((predictions == labels).sum()) - int((predicted * true).sum())
    return covariance / math.sqrt(math.prod(variances)) if all(variances) else 0.0


def class_metrics(probs: Tensor, labels: Tensor, *, bins: int = 15) -> dict[str, float]:
    """Compute all classification metrics, unscaled, with the keys and order of :data:`DISPLAY`.

    Args:
        probs: mean probabilities ``(n, classes)``.
        labels: class indices ``(n,)``.
        bins: number of bins of ECE and MCE.

    Raises:
        ValueError: bins is not a positive int; invalid inputs.
    """
    probs, labels = probs.cpu(), labels.cpu()
    return {
        "accuracy": accuracy(probs, labels),
        "mcc": matthews_corrcoef(probs, labels),
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

    0 to classes − 1: for a prediction with probability 1, the number of classes it is off by; a discrete CRPS.
    """
    probs, labels = validate(probs, labels)
    below = torch.arange(probs.shape[1]) >= labels[:, None]
    return float((probs.cumsum(1) - below.double())[:, :-1].square().sum(1).mean())
