"""Calibration of split-conformal predictors, of sets and of intervals: the quantile q̂."""

import math
import warnings
from typing import ClassVar, Self

import torch
from scipy.special import betaincinv
from torch import Tensor

from probattn.inference.prediction.predictor import Decision, FewExamplesWarning, Predictor

SHORTFALL = 0.05
"""Largest distance of coverage below the promise, in one case of twenty, without a warning."""


def conformal_quantile(scores: Tensor, alpha: float) -> Tensor:
    """Return q̂ ``(...)`` of scores ``(n, ...)``; ∞ for n < 1/α − 1.

    Warns:
        FewExamplesWarning: coverage given these examples may well be :data:`SHORTFALL` below 1 − α.
    """
    examples = len(scores)
    # Examples with scores of at least q̂; 100 · 0.29 is 28.999…
    excluded = math.floor((examples + 1) * alpha + 1e-9)
    if not excluded:
        return torch.full_like(scores[0], math.inf)
    # Of the coverage given these examples, if without ties.
    low = betaincinv(examples + 1 - excluded, excluded, 0.05)
    if low < 1 - alpha - SHORTFALL:
        promise = f"{examples} calibration examples promise {1 - alpha:.4g} on average over samples"
        message = f"{promise}; these may cover only {low:.2f} (5 % quantile)"
        warnings.warn(message, FewExamplesWarning, stacklevel=3)
    return scores.sort(0).values[-excluded]


def min_examples(alpha: float) -> int:
    """Return the smallest number n of calibration examples with a finite quantile, n ≥ 1/α − 1.

    With fewer, every class is in every set, and intervals are infinite.
    """
    # (n + 1) α + 1e-9 ≥ 1, as in conformal_quantile.
    return max(1, math.ceil((1 - 1e-9) / alpha) - 1)


class ConformalPredictor(Decision):
    """Base class of conformal predictors: the predictor inside, with decisions on its predictions.

    Args:
        predictor: any predictor; None to decide on predictions of others.
        alpha: allowed probability of missing the label, 0 < alpha < 1.

    Attributes:
        quantile: q̂ of all targets, or of classes, in one dimension, float64 on the CPU; ∞ if there
            are n < 1/α − 1 calibration examples.
    """

    fitted_values: ClassVar[tuple[str, ...]] = ("alpha",)
    fitted_vector = "quantile"

    def __init__(self, predictor: Predictor | None = None, *, alpha: float) -> None:
        super().__init__(predictor)
        self.alpha = alpha

    def calibrate(self, scores: Tensor) -> Self:
        """Set the quantile from nonconformity scores ``(n, ...)``.

        Warns:
            FewExamplesWarning: see :func:`conformal_quantile`; fewer than :func:`min_examples`.
        """
        return self._set(conformal_quantile(scores, self.alpha))

    def _set(self, quantile: Tensor) -> Self:
        self.quantile = quantile.flatten().cpu().clone()
        if infinite := self.quantile.isinf().nonzero().flatten().tolist():
            of = f" about classes or targets {infinite}" if len(self.quantile) > 1 else ""
            message = f"too few calibration examples promise nothing{of}"
            advice = f"take at least {min_examples(self.alpha)} of each, or a larger alpha"
            warnings.warn(f"{message}: {advice}", FewExamplesWarning, stacklevel=4)
        self.fitted = True
        return self


def means(**values: Tensor) -> dict[str, float]:
    """Return the mean of each value."""
    return {name: float(value.double().mean()) for name, value in values.items()}
