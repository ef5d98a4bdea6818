"""Out-of-distribution detection: scores of a prediction, and how well they tell strange inputs from known ones.

A detector gives each input a score ``(n,)``, float64 on the CPU; a *higher* one means more out-of-distribution. The
scores come from class probabilities ``(n, classes)`` that are already averaged over draws, and of metrics only the
order of the scores counts. Metrics are fractions; :data:`DISPLAY` has the papers' scaling.
"""

import math

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from probattn.inference.metrics import MetricDisplay
from probattn.inference.prediction.result import Prediction

DETECTORS: dict[str, str] = {
    "kl_matching": "KLMatching",
    "max_softmax": "MaxSoftmax",
    "entropy": "Entropy",
    "energy": "Energy",
    "mutual_information": "Mutual information",
}
"""The keys of :func:`scores`, in its order, with their titles."""

DISPLAY: dict[str, MetricDisplay] = {
    "auroc": MetricDisplay("AUROC", 100, higher_is_better=True),
    "aupr_in": MetricDisplay("AUPR-in", 100, higher_is_better=True),
    "aupr_out": MetricDisplay("AUPR-out", 100, higher_is_better=True),
    "fpr95_in": MetricDisplay("FPR95-in", 100, higher_is_better=False),
    "fpr95_out": MetricDisplay("FPR95-out", 100, higher_is_better=False),
}
"""The keys of :func:`metrics`, in its order; ``_in`` and ``_out`` name the positive class."""


def max_softmax(prediction: Prediction) -> Tensor:
    """One minus the confidence (Hendrycks & Gimpel, 2017)."""
    return 1 - _probs(prediction).amax(1)


def entropy(prediction: Prediction) -> Tensor:
    """Entropy of the mean probabilities, in nats (Chan et al., 2021)."""
    return torch.special.entr(_probs(prediction)).sum(1)


def energy(prediction: Prediction) -> Tensor | None:
    """Mean over draws of the free energy −log Σ exp(logits) (Liu et al., 2020, eq. 4); None where it is unknown."""
    return None if prediction.energy is None else _double(prediction.energy)


def mutual_information(prediction: Prediction) -> Tensor | None:
    """Mutual information of label and weights, in nats (Houlsby et al., 2011); None where it is unknown.

    A difference of entropies: what is within their rounding (1.9e-6 nats in float32) counts as zero, so that draws
    that are all alike say nothing.
    """
    value = prediction.mutual_information
    if value is None:
        return None
    rounding = 16 * torch.finfo(value.dtype).eps
    return _double(value).where(_double(value) > rounding, 0.0)


class KLMatching:
    """Divergence from the closest typical posterior, min_k KL(p ‖ d_k), in nats (Hendrycks et al., 2022, § 4.2).

    d_k ``(classes,)`` is the mean of the probabilities of all examples that are *predicted* as class k; labels are not
    needed, and a class that is never predicted has none. A zero in d_k counts as the smallest normal number of the
    probabilities' dtype, as in :attr:`Prediction.log_probs`.

    Args:
        fitted_on: what the model predicts on in-distribution inputs, such as the validation part.
    """

    def __init__(self, fitted_on: Prediction) -> None:
        probs = _probs(fitted_on)
        predicted = probs.argmax(1)
        self.typical = torch.stack([probs[predicted == k].mean(0) for k in predicted.unique()])
        self._tiny = torch.finfo(fitted_on.probs.dtype).tiny

    def __call__(self, prediction: Prediction) -> Tensor:
        """The score of each input.

        Raises:
            ValueError: probabilities of another number of classes.
        """
        probs = _probs(prediction)
        if probs.shape[1] != self.typical.shape[1]:
            raise ValueError(f"fitted on {self.typical.shape[1]} classes, but the prediction has {probs.shape[1]}")
        cross_entropy = -probs @ self.typical.clamp(min=self._tiny).log().T
        return cross_entropy.amin(1) - torch.special.entr(probs).sum(1)


def scores(prediction: Prediction, *, fitted_on: Prediction) -> dict[str, Tensor]:
    """The scores ``(n,)`` of every detector, keyed and ordered as :data:`DETECTORS`.

    A detector whose quantity the prediction lacks (the energy of probabilities that were mixed, say) is left out.

    Args:
        prediction: of the inputs to judge.
        fitted_on: of in-distribution inputs that are not tested on; KLMatching learns from it.

    Raises:
        ValueError: no class probabilities, none of an example, or NaN or Inf in them.
    """
    every = {
        "kl_matching": KLMatching(fitted_on)(prediction),
        "max_softmax": max_softmax(prediction),
        "entropy": entropy(prediction),
        "energy": energy(prediction),
        "mutual_information": mutual_information(prediction),
    }
    return {name: score for name, score in every.items() if score is not None}


def metrics(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """How well scores separate in-distribution from out-of-distribution inputs, keyed and ordered as :data:`DISPLAY`.

    - ``auroc``: the chance that an out-of-distribution input has the higher score, ties counting half; the same
      whichever class is positive.
    - ``aupr_in``, ``aupr_out``: average precision with in-distribution (out-of-distribution) inputs positive.
    - ``fpr95_in``: the share of out-of-distribution inputs accepted by the strictest threshold that accepts at least
      95 % of in-distribution ones.
    - ``fpr95_out``: the share of in-distribution inputs rejected by the strictest threshold that rejects at least
      95 % of out-of-distribution ones; what pytorch-ood calls FPR95TPR.

    The first three are summed in float32, good to about six digits.

    Args:
        inside: scores ``(n,)`` of in-distribution inputs, higher meaning out-of-distribution.
        outside: scores ``(m,)`` of out-of-distribution inputs.

    Raises:
        ValueError: scores of another shape, no scores, NaN or Inf among them.
    """
    inside, outside = _checked("inside", inside), _checked("outside", outside)
    # torchmetrics takes scores outside [0, 1] for logits. Ranks are spaced evenly: no two of them round to one.
    distinct, rank = torch.cat([inside, outside]).unique(return_inverse=True)
    high = rank.double() / len(distinct)
    is_outside = torch.arange(len(high)) >= len(inside)
    return {
        "auroc": float(binary_auroc(high, is_outside.long())),
        "aupr_in": float(binary_average_precision(1 - high, (~is_outside).long())),
        "aupr_out": float(binary_average_precision(high, is_outside.long())),
        "fpr95_in": _fpr95(-inside, -outside),
        "fpr95_out": _fpr95(outside, inside),
    }


def evaluate(inside: Prediction, outside: Prediction, *, fitted_on: Prediction) -> dict[str, dict[str, float]]:
    """The metrics of every detector that both predictions have, keyed and ordered as :data:`DETECTORS`.

    Mutual information that is zero for every input of both, as of a deterministic network, does not exist: it is left
    out, instead of being called a detector that guesses.

    Args:
        inside: of in-distribution inputs, such as the test part.
        outside: of out-of-distribution inputs.
        fitted_on: of other in-distribution inputs, such as the validation part; see :func:`scores`.

    Raises:
        ValueError: as for :func:`scores` and :func:`metrics`, with the detector.
    """
    known, strange = scores(inside, fitted_on=fitted_on), scores(outside, fitted_on=fitted_on)
    result = {}
    for name in (name for name in known if name in strange):
        if name == "mutual_information" and not (known[name].any() or strange[name].any()):
            continue
        try:
            result[name] = metrics(known[name], strange[name])
        except ValueError as error:
            raise ValueError(f"{DETECTORS[name]}: {error}") from error
    return result


def _fpr95(positive: Tensor, negative: Tensor) -> float:
    """Share of ``negative`` at or above the highest threshold that at least 95 % of ``positive`` reach."""
    needed = math.ceil(95 * len(positive) / 100)
    threshold = positive.sort(descending=True).values[needed - 1]
    return float((negative >= threshold).double().mean())


def _probs(prediction: Prediction) -> Tensor:
    probs = prediction.probs
    if probs is None or probs.ndim != 2 or not len(probs):
        found = "none" if probs is None else f"{tuple(probs.shape)}"
        raise ValueError(
            f"detectors need probabilities of shape (examples, classes) of an example or more, got {found}"
        )
    if not probs.isfinite().all():
        raise ValueError("NaN or Inf in the probabilities: check the network")
    return _double(probs)


def _checked(name: str, values: Tensor) -> Tensor:
    if values.ndim != 1 or not len(values):
        raise ValueError(f"scores {name} the distribution must have shape (n,), n ≥ 1, got {tuple(values.shape)}")
    values = _double(values)
    if not values.isfinite().all():
        count = int((~values.isfinite()).sum())
        raise ValueError(f"NaN or Inf in {count} of {len(values)} scores {name} the distribution")
    return values


def _double(values: Tensor) -> Tensor:
    return values.detach().cpu().double()
