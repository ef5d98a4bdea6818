"""Split-conformal prediction: sets of classes and intervals of numbers with guaranteed coverage.

A nonconformity score measures how badly a class fits an example. The quantile q̂ is the ⌈(n + 1)(1 − α)⌉-th smallest
score of the true classes of n calibration examples; a set holds the classes with scores of at most q̂. If calibration
and new examples are exchangeable, it holds the true class with probability ≥ 1 − α for any network (Vovk et al., 2005).
This marginal coverage averages over calibration data; conditionally on them, coverage follows Beta(l, n + 1 − l), l the
rank above, for continuous scores.

For numbers, the score measures the distance of a label from its prediction; the interval holds all numbers with scores
of at most q̂ (Lei et al., 2018). Each target has its own q̂: coverage is guaranteed per target, not jointly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor

from probattn.inference.metrics import regression
from probattn.inference.metrics.inputs import validate
from probattn.inference.prediction.result import Prediction

Score = Callable[[Tensor, Generator | None], Tensor]
"""Callable: probabilities ``(n, classes)``, float64 on the CPU, and a generator → scores ``(n, classes)``."""

Band = Callable[[Prediction], tuple[Tensor, Tensor, Tensor | float]]
"""Callable: prediction → lower and upper ends ``(n, ...)`` before calibration, and the unit of q̂."""


@dataclass(frozen=True)
class ConformalSets:
    """Conformal prediction sets: the classes whose score is at most the calibrated quantile.

    Args:
        score: nonconformity score.
        quantile: q̂; ∞, so that sets hold all classes, if there are n < 1/α − 1 calibration examples.
        alpha: allowed probability of missing the true class.
        classes: number of classes of the calibration data.
    """

    score: Score
    quantile: float
    alpha: float
    classes: int

    def sets(self, probs: Tensor, *, generator: Generator | None = None) -> Tensor:
        """Return membership of each class in the set of each example, bool ``(n, classes)``.

        Args:
            probs: mean probabilities ``(n, classes)``.
            generator: generator for randomised scores (:func:`aps`), on the CPU; None uses PyTorch's global one.

        Raises:
            ValueError: another number of classes than in calibration; invalid probabilities.
        """
        checked, _ = validate(probs, torch.zeros(len(probs), dtype=torch.long))
        if checked.shape[1] != self.classes:
            raise ValueError(
                f"these conformal sets were calibrated on {self.classes} classes, and the prediction has "
                f"{checked.shape[1]}: calibrate on predictions of the same model"
            )
        return (self.score(checked, generator) <= self.quantile).to(probs.device)

    def evaluate(self, probs: Tensor, labels: Tensor, *, generator: Generator | None = None) -> dict[str, float]:
        """Evaluate the sets on test data.

        Returns:
            ``coverage``, the share of sets with the true class; ``size``, the mean number of classes per set;
            ``empty`` and ``singletons``, the shares of sets with no class and with one.
        """
        probs, labels = validate(probs, labels)
        sets = self.sets(probs, generator=generator)
        size = sets.sum(dim=1)
        return {
            "coverage": float(sets.gather(1, labels[:, None]).double().mean()),
            "size": float(size.double().mean()),
            "empty": float((size == 0).double().mean()),
            "singletons": float((size == 1).double().mean()),
        }


def lac(probs: Tensor, labels: Tensor, *, alpha: float) -> ConformalSets:
    """Calibrate least ambiguous sets (LAC; Sadinle, Lei & Wasserman, 2019): all classes of probability ≥ 1 − q̂.

    The score is 1 − p. These sets have the smallest mean size; difficult examples may have empty ones.

    Args:
        probs: mean probabilities of calibration examples ``(n, classes)``, which nothing was fitted to.
        labels: their class indices ``(n,)``.
        alpha: allowed probability of missing the true class, 0 < alpha < 1.

    Raises:
        ValueError: alpha outside (0, 1); invalid probs or labels, as in :mod:`probattn.inference.metrics`.
    """
    return _calibrate_sets(_lac_score, probs, labels, alpha, None)


def aps(probs: Tensor, labels: Tensor, *, alpha: float, generator: Generator | None = None) -> ConformalSets:
    """Calibrate adaptive prediction sets (APS; Romano, Sesia & Candès, 2020), which grow with an example's difficulty.

    The score is the total probability of all more probable classes, plus u times that of the class; u ~ U(0, 1) is
    sampled per example, in calibration and in use, so that coverage is exact with tied or few probabilities, too.

    Args:
        probs, labels, alpha: as for :func:`lac`.
        generator: generator of u, on the CPU; None uses PyTorch's global one.

    Raises:
        ValueError: as for :func:`lac`.
    """
    return _calibrate_sets(_aps_score, probs, labels, alpha, generator)


@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """Conformal prediction intervals: the ends of a band, moved outwards by q̂ units.

    Args:
        band: the ends before calibration, and the unit.
        quantile: q̂ of each target ``(...)``; ∞ if there are n < 1/α − 1 calibration examples; negative if the band is
            too wide, so that intervals may be empty (lower end above upper end).
        alpha: allowed probability of missing the label.
    """

    band: Band
    quantile: Tensor
    alpha: float

    def intervals(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends ``(n, ...)``, in units of the targets.

        Raises:
            ValueError: other targets than in calibration.
        """
        low, high, unit = self.band(prediction)
        if low.shape[1:] != self.quantile.shape:
            raise ValueError(
                f"these conformal intervals were calibrated on targets of shape {tuple(self.quantile.shape)}, and the "
                f"prediction has {tuple(low.shape[1:])}: calibrate on predictions of the same model"
            )
        margin = self.quantile.to(low.device) * unit
        return low - margin, high + margin

    def evaluate(self, prediction: Prediction, labels: Tensor) -> dict[str, float]:
        """Evaluate the intervals on test data, with means over examples and targets.

        Returns:
            ``coverage``, the share of intervals with the label; ``width``, in units of the targets; ``empty``, the
            share of empty intervals.
        """
        low, high = self.intervals(prediction)
        values = regression.validate(prediction, labels)
        return {
            "coverage": float(((low <= values) & (values <= high)).double().mean()),
            "width": float((high - low).clamp(min=0).mean()),
            "empty": float((high < low).double().mean()),
        }


def absolute(prediction: Prediction, labels: Tensor, *, alpha: float) -> ConformalIntervals:
    """Calibrate intervals of constant width around the predictive mean: score |y − mean| (Lei et al., 2018, alg. 2).

    Args:
        prediction: prediction of calibration examples, which nothing was fitted to. With a label per token use
            ``prediction.tokens()``; coverage then assumes that tokens are exchangeable.
        labels: their labels ``(n, ...)``.
        alpha: allowed probability of missing the label, 0 < alpha < 1.

    Raises:
        ValueError: alpha outside (0, 1); labels of the wrong shape or not finite; a likelihood without a mean, for
            which to use :func:`cqr`.
    """
    return _calibrate_intervals(_around_mean, prediction, labels, alpha)


def normalised(prediction: Prediction, labels: Tensor, *, alpha: float) -> ConformalIntervals:
    """Calibrate intervals proportional to the predictive standard deviation: score |y − mean| / sd (Lei et al., 2018).

    Arguments and errors are those of :func:`absolute`; the likelihood must have a finite variance, too.
    """
    return _calibrate_intervals(_around_mean_by_sd, prediction, labels, alpha)


def cqr(prediction: Prediction, labels: Tensor, *, alpha: float) -> ConformalIntervals:
    """Calibrate the predictive quantiles: conformalised quantile regression (CQR; Romano, Patterson & Candès, 2019).

    The score is the distance of the label to the interval of the α/2 and 1 − α/2 quantiles, negative inside. It needs
    no moments, so it works for all likelihoods of numbers. Arguments and errors are those of :func:`absolute`.
    """
    _check_alpha(alpha)
    return _calibrate_intervals(partial(_between_quantiles, alpha=alpha), prediction, labels, alpha)


def _lac_score(probs: Tensor, generator: Generator | None) -> Tensor:
    return 1 - probs


def _aps_score(probs: Tensor, generator: Generator | None) -> Tensor:
    ordered, order = probs.sort(dim=1, descending=True, stable=True)
    u = torch.rand(len(probs), 1, dtype=probs.dtype, generator=generator)
    scores = ordered.cumsum(dim=1) - (1 - u) * ordered
    return torch.empty_like(scores).scatter_(1, order, scores)


def _calibrate_sets(
    score: Score, probs: Tensor, labels: Tensor, alpha: float, generator: Generator | None
) -> ConformalSets:
    _check_alpha(alpha)
    probs, labels = validate(probs, labels)
    scores = score(probs, generator).gather(1, labels[:, None])[:, 0]
    return ConformalSets(score, float(_quantile(scores, alpha)), alpha, probs.shape[1])


def _around_mean(prediction: Prediction) -> tuple[Tensor, Tensor, float]:
    mean = prediction.mean.double()
    if not mean.isfinite().all():
        raise ValueError("this likelihood has no finite mean: calibrate its quantiles by conformal.cqr")
    return mean, mean, 1.0


def _around_mean_by_sd(prediction: Prediction) -> tuple[Tensor, Tensor, Tensor]:
    mean, _, _ = _around_mean(prediction)
    variance = prediction.variance.double()
    if not (variance.isfinite() & (variance > 0)).all():
        raise ValueError("this likelihood has no finite, positive variance: use conformal.cqr or conformal.absolute")
    return mean, mean, variance.sqrt()


def _between_quantiles(prediction: Prediction, *, alpha: float) -> tuple[Tensor, Tensor, float]:
    low, high = prediction.quantiles([alpha / 2, 1 - alpha / 2])
    return low, high, 1.0


def _calibrate_intervals(band: Band, prediction: Prediction, labels: Tensor, alpha: float) -> ConformalIntervals:
    _check_alpha(alpha)
    values = regression.validate(prediction, labels)
    low, high, unit = band(prediction)
    return ConformalIntervals(band, _quantile(torch.maximum(low - values, values - high) / unit, alpha), alpha)


def _quantile(scores: Tensor, alpha: float) -> Tensor:
    """Return q̂ ``(...)`` of scores ``(n, ...)``."""
    missed = math.floor((len(scores) + 1) * alpha + 1e-9)  # 100 · 0.29 is 28.999…
    return scores.sort(0).values[-missed] if missed else torch.full_like(scores[0], math.inf)


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}: 0.1 for a coverage of 90 %")
