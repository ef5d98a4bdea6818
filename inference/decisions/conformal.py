"""Split-conformal prediction: sets of classes and intervals of numbers with guaranteed coverage.

A nonconformity score measures how badly a label fits an example. The quantile q̂ is the ⌈(n + 1)(1
− α)⌉-th smallest score of the labels of n calibration examples; a set holds the classes, and an
interval the numbers, with scores of at most q̂. If calibration and new examples are exchangeable,
it holds the label with probability ≥ 1 − α for any network (Vovk et al., 2005; Lei et al., 2018).
Intervals have a q̂ for each target: coverage is per target, not joint.

This marginal coverage averages over calibration data. Given them, coverage follows Beta(l, n + 1 −
l), l the rank above: 90 % promised by 30 examples is as low as 80 % in one case of twenty.
"""

import math
import warnings
from abc import abstractmethod
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from scipy.special import betaincinv
from torch import Tensor

from probattn.inference.metrics import regression, valid_probs, validate
from probattn.inference.prediction.predictor import (
    Decision,
    FewExamplesWarning,
    Predictor,
    labelled_classes,
)
from probattn.inference.prediction.result import Prediction

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


class ConformalSets(ConformalPredictor):
    """Base class of conformal sets of classes: all classes with scores of at most q̂.

    Exported, they add ``set``, bool ``(batch, classes)``, to the outputs of their predictor.
    Arguments are those of :class:`ConformalPredictor`; the predictor is one of one class per
    example.
    """

    @abstractmethod
    def scores(self, probs: Tensor) -> Tensor:
        """Return the nonconformity score of each class, float64, of mean probabilities, both
        ``(n, classes)``."""

    def fit_prediction(self, prediction: Prediction) -> Self:
        """Calibrate on a prediction with its labels, which nothing was fitted to.

        Raises:
            ValueError: invalid probabilities or labels, as in :mod:`probattn.inference.metrics`.
        """
        probs, labels = validate(*labelled_classes(prediction))
        return self.calibrate(self.scores(probs).gather(1, labels[:, None]))

    def decide(self, prediction: Prediction) -> dict[str, Tensor]:
        """Return ``set``."""
        return {"set": self._members(prediction.require("probs"))}

    def sets(self, probs: Tensor) -> Tensor:
        """Return membership of each class in the set of each example, bool ``(n, classes)``.

        Args:
            probs: mean probabilities ``(n, classes)``.

        Raises:
            ValueError: invalid probabilities.
        """
        return self._members(valid_probs(probs)).to(probs.device)

    def evaluate(self, probs: Tensor, labels: Tensor) -> dict[str, float]:
        """Evaluate the sets on test data.

        Returns:
            ``coverage``, the share of sets with the true class; ``size``, the mean number of
            classes per set; ``empty`` and ``singletons``, the shares of sets with no class and with
            one.
        """
        probs, labels = validate(probs, labels)
        sets = self._members(probs)
        size = sets.sum(1)
        return _means(
            coverage=sets.gather(1, labels[:, None]),
            size=size,
            empty=size == 0,
            singletons=size == 1,
        )

    def _members(self, probs: Tensor) -> Tensor:
        self.check_fitted()
        return self.scores(probs) <= self.quantile.to(probs.device)


class LAC(ConformalSets):
    """Least ambiguous sets (LAC; Sadinle, Lei & Wasserman, 2019): all classes of probability ≥ 1 −
    q̂.

    The score is 1 − p. These sets have the smallest mean size; difficult examples may have empty
    ones. Arguments are those of :class:`ConformalSets`.
    """

    def scores(self, probs: Tensor) -> Tensor:
        """Return 1 − p."""
        return 1 - probs.double()


class ByClass(LAC):
    """LAC with a quantile for each class, so that each class is covered with probability ≥ 1 − α
    (Vovk, 2012).

    A class with fewer than 1/α − 1 calibration examples is in every set. Arguments are those of
    :class:`ConformalSets`.
    """

    def fit_prediction(self, prediction: Prediction) -> Self:
        """Calibrate on a prediction with its labels, which nothing was fitted to.

        Raises:
            ValueError: invalid probabilities or labels, as in :mod:`probattn.inference.metrics`.

        Warns:
            FewExamplesWarning: see :func:`conformal_quantile`, for each class; classes that are in
                every set.
        """
        probs, labels = validate(*labelled_classes(prediction))
        scores = self.scores(probs)
        padded = torch.full((probs.shape[1],), math.inf, dtype=torch.float64)
        for label in labels.unique().tolist():
            padded[label] = conformal_quantile(scores[labels == label, label], self.alpha)
        return self._set(padded)


class APS(ConformalSets):
    """Adaptive prediction sets (APS; Romano, Sesia & Candès, 2020): the most probable classes up to
    a mass, so that difficult examples have larger sets.

    The score of a class is the probability of all that are more probable, where classes of equal
    probability are ordered by their index. It is the score of the paper without its random part:
    the most probable class is always in the set, also where that class alone covers more than
    1 − α. Arguments are those of :class:`ConformalSets`.
    """

    def scores(self, probs: Tensor) -> Tensor:
        """Return the probability of all classes that are more probable."""
        return _mass_above(probs)


class RAPS(ConformalSets):
    """Regularised adaptive prediction sets (RAPS; Angelopoulos, Bates, Malik & Jordan, 2021): APS
    without many improbable classes.

    The score is that of :class:`APS`, plus ``penalty`` for each rank beyond ``free``. The most
    probable class is always in the set.

    Args:
        predictor, alpha: as for :class:`ConformalSets`.
        penalty: λ ≥ 0; 0 is APS.
        free: number of ranks without penalty, at least 0.
    """

    fitted_values = ("alpha", "penalty", "free")

    def __init__(
        self,
        predictor: Predictor | None = None,
        *,
        alpha: float,
        penalty: float = 0.1,
        free: int = 1,
    ) -> None:
        super().__init__(predictor, alpha=alpha)
        self.penalty = penalty
        self.free = free

    def scores(self, probs: Tensor) -> Tensor:
        """Return the probability of all classes that are more probable, and the penalty."""
        return _mass_above(probs, penalty=self.penalty, free=self.free)


def _mass_above(probs: Tensor, *, penalty: float = 0.0, free: float = 0) -> Tensor:
    """Return Σ_{j before c} p_j + penalty · max(0, rank(c) − free) of each class c, in the order of
    falling probability; float64 ``(n, classes)``."""
    values, order = probs.double().sort(dim=1, descending=True, stable=True)
    above = F.pad(values.cumsum(1)[:, :-1], (1, 0))
    ranks = 1 + torch.arange(probs.shape[1], device=probs.device)
    scores = above + penalty * (ranks - free).clamp(min=0)
    return torch.empty_like(scores).scatter(1, order, scores)


class ConformalIntervals(ConformalPredictor):
    """Base class of conformal prediction intervals: the ends of a band, moved outwards by q̂ units.

    A quantile is negative if the band is too wide, so that intervals may be empty (lower end above
    upper end). Exported, they add ``low`` and ``high`` ``(batch, ...)`` to the outputs of their
    predictor. Arguments are those of :class:`ConformalPredictor`; the predictor is one of numbers.
    """

    @abstractmethod
    def band(self, prediction: Prediction) -> tuple[Tensor, Tensor, Tensor | float]:
        """Return lower and upper ends ``(n, ...)`` before calibration, and the unit of q̂."""

    def fit_prediction(self, prediction: Prediction) -> Self:
        """Calibrate on a prediction with its labels, which nothing was fitted to.

        With a label per token use ``prediction.tokens()``; coverage then assumes that tokens are
        exchangeable.

        Raises:
            ValueError: labels of the wrong shape or not finite.
        """
        values = regression.validate(prediction, prediction.require("labels"))
        low, high, unit = self.band(prediction)
        return self.calibrate(torch.maximum(low - values, values - high) / unit)

    def decide(self, prediction: Prediction) -> dict[str, Tensor]:
        """Return ``low`` and ``high``."""
        low, high = self.intervals(prediction)
        return {"low": low, "high": high}

    def intervals(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends ``(n, ...)``, in units of the targets.

        Raises:
            RuntimeError: another number of targets than in calibration.
        """
        self.check_fitted()
        low, high, unit = self.band(prediction)
        margin = self.quantile.to(low.device).reshape(low.shape[1:]) * unit
        return low - margin, high + margin

    def evaluate(self, prediction: Prediction, labels: Tensor) -> dict[str, float]:
        """Evaluate the intervals on test data, with means over examples and targets.

        Returns:
            ``coverage``, the share of intervals with the label; ``width``, in units of the targets;
            ``empty``, the share of empty intervals.
        """
        low, high = self.intervals(prediction)
        values = regression.validate(prediction, labels)
        covered = (low <= values) & (values <= high)
        return _means(coverage=covered, width=(high - low).clamp(min=0), empty=high < low)


class Normalised(ConformalIntervals):
    """Intervals proportional to the predictive standard deviation: score ``|y − mean| / sd`` (Lei
    et al., 2018).

    Arguments are those of :class:`ConformalPredictor`; the likelihood must have a mean and a finite
    variance.
    """

    def band(self, prediction: Prediction) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean twice, and the standard deviation."""
        mean = prediction.require("mean").double()
        return mean, mean, prediction.require("variance").double().sqrt()


class CQR(ConformalIntervals):
    """Calibrated predictive quantiles: conformalised quantile regression (CQR; Romano, Patterson &
    Candès, 2019).

    The score is the distance of the label to the interval of the α/2 and 1 − α/2 quantiles,
    negative inside. It needs no moments, so it works for all likelihoods of numbers. Quantiles are
    found by bisection, so it is not exported. Arguments are those of :class:`ConformalPredictor`.
    """

    def band(self, prediction: Prediction) -> tuple[Tensor, Tensor, float]:
        """Return the quantiles, and 1."""
        return *prediction.quantiles([self.alpha / 2, 1 - self.alpha / 2]), 1.0


def _means(**values: Tensor) -> dict[str, float]:
    return {name: float(value.double().mean()) for name, value in values.items()}
