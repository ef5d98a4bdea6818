"""Selective classification with a guaranteed risk: a confidence threshold below which predictions
are rejected.

Risk is the error rate among accepted predictions; confidence is the largest probability (as in
:mod:`probattn.inference.metrics`). The problem is that of Geifman & El-Yaniv, "Selective
classification for deep neural networks" (2017). Their bisection tests each step at level δ/⌈log₂
n⌉, but its path depends on the labels, which a union bound over the steps does not cover. Here
thresholds are tested in a fixed sequence, independent of the labels: from the highest threshold on,
one more accepted example per test, each at the same level, until a test fails. Fixed-sequence
testing needs no correction for its length. Since one early error ends a sequence, several start at
different places and share δ equally (Bauer, 1991; Angelopoulos et al., "Learn then test", 2021).
"""

import math
from typing import Self

import numpy as np
from scipy.special import bdtr, betaincinv
from torch import Tensor

from probattn.inference.metrics import confidence_and_correct, valid_probs
from probattn.inference.prediction.predictor import Decision, Predictor, labelled_classes
from probattn.inference.prediction.result import Prediction


class RiskThreshold(Decision):
    """Confidence threshold of largest coverage whose risk is at most ``target`` with probability 1
    − ``delta``.

    Predictions with at least this confidence are accepted; equal confidences are accepted together.
    The probability is over validation data, which are independent samples of the distribution of
    new data; it is exact for all n if the risk does not decrease when less confident predictions
    are accepted too. Exported, it adds ``accepted``, bool ``(batch,)``, to the outputs of its
    predictor.

    Args:
        predictor: any predictor of one class per example; None to decide on predictions of others.
        target: largest acceptable risk, 0 < target < 1. It takes at least log(delta) / log(1 −
            target) examples without an error: 59 for 5 %, 299 for 1 %.
        delta: probability, 0 < delta < 1, that the threshold's risk is larger.

    Attributes:
        confidence: the threshold; ∞ if none meets the target, so that nothing is accepted.
        bound: upper bound of the risk by the threshold's own test, at most ``target``; 1 if nothing
            is accepted. The guarantee is for ``target``, since the threshold was selected among
            many; ``bound`` alone is not.
        coverage: share of accepted validation examples.
        error_free: number of the most confident validation examples before the first error.

    Raises:
        ValueError: target or delta outside (0, 1).
    """

    fitted_values = ("confidence", "bound", "coverage", "target", "delta", "error_free")

    def __init__(
        self, predictor: Predictor | None = None, *, target: float, delta: float = 0.05
    ) -> None:
        super().__init__(predictor)
        if not (0 < target < 1 and 0 < delta < 1):
            raise ValueError(f"target and delta must lie between 0 and 1, got {target} and {delta}")
        self.target = target
        self.delta = delta

    def fit_prediction(self, prediction: Prediction) -> Self:
        """Choose the threshold on a prediction of validation data with its labels.

        Raises:
            ValueError: invalid probabilities or labels, as in :mod:`probattn.inference.metrics`.
        """
        confidence, correct = confidence_and_correct(*labelled_classes(prediction))
        # From the most confident on, equal ones together.
        negated, group, sizes = np.unique(
            -confidence.numpy(), return_inverse=True, return_counts=True
        )
        accepted = sizes.cumsum()
        errors = np.bincount(group, weights=~correct.numpy()).cumsum()
        starts = _starts(len(correct), self.target, self.delta)
        level = self.delta / len(starts)
        passes = bdtr(errors, accepted, self.target) <= level
        best = 0
        for first in np.searchsorted(accepted, starts):
            length = np.append(passes[first:], False).argmin()  # until a test fails
            if length:
                best = max(best, first + length)
        self.confidence = math.inf
        self.bound = 1.0
        self.coverage = 0.0
        if best:
            number = int(accepted[best - 1])
            self.confidence = float(-negated[best - 1])
            self.coverage = number / len(correct)
            self.bound = risk_bound(int(errors[best - 1]), number, delta=level)
        self.error_free = int(accepted[errors == 0].max(initial=0))
        self.fitted = True
        return self

    def decide(self, prediction: Prediction) -> dict[str, Tensor]:
        """Return ``accepted``."""
        probs = prediction.require("probs")
        return {"accepted": probs.double().amax(-1) >= self.confidence}

    def accepts(self, probs: Tensor) -> Tensor:
        """Return True ``(n,)`` for accepted predictions of mean probabilities ``(n, classes)``."""
        self.check_fitted()
        return valid_probs(probs).amax(1).to(probs.device) >= self.confidence

    def evaluate(self, probs: Tensor, labels: Tensor) -> dict[str, float]:
        """Evaluate the threshold on test data that were not used to choose it.

        Returns:
            ``accepted`` (count), ``coverage``, ``risk`` (NaN if nothing is accepted), its exact
            two-sided interval ``low``, ``high`` at confidence 1 − delta (Clopper & Pearson, 1934).
        """
        self.check_fitted()
        confidence, correct = confidence_and_correct(probs, labels)
        accepted = confidence >= self.confidence
        count = int(accepted.sum())
        errors = int((accepted & ~correct).sum())
        return {
            "accepted": count,
            "coverage": count / len(labels),
            "risk": errors / count if count else math.nan,
            "low": 1 - risk_bound(count - errors, count, delta=self.delta / 2),
            "high": risk_bound(errors, count, delta=self.delta / 2),
        }

    def __str__(self) -> str:
        promise = f"risk ≤ {100 * self.target:g} % with {100 * (1 - self.delta):g} % confidence"
        if math.isinf(self.confidence):
            number = _min_accepted(self.target, self.delta)
            needed = f"takes at least {number} validation examples without an error"
            here = f"; here the {self.error_free:g} most confident have none"
            if math.isnan(self.error_free):
                here = ""
            return f"abstain from everything: {promise} {needed}{here}"
        coverage = f", coverage {100 * self.coverage:.1f} %"
        if math.isnan(self.coverage):
            coverage = ""
        return f"accept if confidence ≥ {self.confidence:.4g}: {promise}{coverage}"


def risk_bound(wrong: int, accepted: int, *, delta: float) -> float:
    """Upper confidence bound of a risk with ``wrong`` errors in ``accepted`` predictions, at level
    1 − ``delta``.

    Exact inversion of the binomial tail, P(Bin(accepted, bound) ≤ wrong) = delta (Clopper &
    Pearson, 1934); 1 if all are wrong, or none is accepted.
    """
    return 1.0 if wrong == accepted else float(betaincinv(wrong + 1, accepted - wrong, 1 - delta))


def _starts(n: int, target: float, delta: float) -> list[int]:
    """Numbers of accepted examples at which the sequences start, doubling from the fewest that can
    pass."""
    count = 1
    while _min_accepted(target, delta / (count + 1)) * 2**count <= n:
        count += 1
    return [_min_accepted(target, delta / count) * 2**step for step in range(count)]


def _min_accepted(target: float, level: float) -> int:
    """Smallest number of accepted examples that pass at this level if none is wrong."""
    return math.ceil(math.log(level) / math.log1p(-target))
