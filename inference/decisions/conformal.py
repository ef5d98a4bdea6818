"""Split-conformal prediction sets of classes, and intervals of numbers, that hold the truth with a chosen probability.

A score says how badly a class fits an example. The q̂ of the scores of n calibration examples, of which the class is
known, is their ⌈(n + 1)(1 − α)⌉-th smallest; a set keeps the classes whose score is at most q̂. Calibration and new
examples exchangeable, the true class is in it with probability ≥ 1 − α (Vovk et al., 2005), whatever the network. That
is over both: given the calibration data the coverage follows Beta(l, n + 1 − l), l that rank, for continuous scores.

Of numbers a score says how far a label lies from its prediction, and the interval holds all numbers whose score is at
most q̂ (Lei et al., 2018). Each target has its own q̂: the promise holds for each by itself, not for all together.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor

from probattn.inference.metrics import checked, regression
from probattn.inference.prediction.result import Prediction

Score = Callable[[Tensor, Generator | None], Tensor]
"""Probabilities ``(n, classes)``, float64 on the CPU, and a source of randomness → scores ``(n, classes)``."""

Band = Callable[[Prediction], tuple[Tensor, Tensor, Tensor | float]]
"""A prediction → the lower and upper ends ``(n, ...)`` of what is widened, and the unit that q̂ is counted in."""


@dataclass(frozen=True)
class ConformalSets:
    """Prediction sets: the classes whose `score` is at most `quantile`.

    Args:
        score: how badly a class fits.
        quantile: q̂; ∞, so that every set holds all classes, where n < 1/α − 1 examples cannot say more.
        alpha: the probability that is allowed to miss the true class.
    """

    score: Score
    quantile: float
    alpha: float

    def sets(self, probs: Tensor, *, generator: Generator | None = None) -> Tensor:
        """Whether each class is in the set of each example, bool ``(n, classes)``.

        Args:
            probs: mean probabilities ``(n, classes)``.
            generator: where adaptive sets draw their randomness, on the CPU; None takes PyTorch's own.
        """
        known, _ = checked(probs, torch.zeros(len(probs), dtype=torch.long))
        return (self.score(known, generator) <= self.quantile).to(probs.device)

    def evaluate(self, probs: Tensor, labels: Tensor, *, generator: Generator | None = None) -> dict[str, float]:
        """What the sets do on test data: means over examples.

        Returns:
            ``coverage``, the share of sets with the true class; ``size``, the mean number of classes in a set;
            ``empty`` and ``singletons``, the shares of sets with none and with one.
        """
        probs, labels = checked(probs, labels)
        sets = self.sets(probs, generator=generator)
        size = sets.sum(dim=1)
        return {
            "coverage": float(sets.gather(1, labels[:, None]).double().mean()),
            "size": float(size.double().mean()),
            "empty": float((size == 0).double().mean()),
            "singletons": float((size == 1).double().mean()),
        }


def plain(probs: Tensor, labels: Tensor, *, alpha: float) -> ConformalSets:
    """Sets of the least mean size (Sadinle, Lei & Wasserman, 2019): every class of probability at least 1 − q̂.

    The score is 1 − p. Examples that the network finds hard may get an empty set.

    Args:
        probs: mean probabilities of calibration examples ``(n, classes)`` that nothing was fitted to.
        labels: their class indices ``(n,)``.
        alpha: the probability, 0 < alpha < 1, that is allowed to miss the true class.

    Raises:
        ValueError: alpha outside (0, 1), or as in `inference.metrics`.
    """
    return _calibrated(_unlikeliness, probs, labels, alpha, None)


def adaptive(probs: Tensor, labels: Tensor, *, alpha: float, generator: Generator | None = None) -> ConformalSets:
    """Sets that grow with the difficulty of the example (APS; Romano, Sesia & Candès, 2020).

    The score is the probability of all likelier classes, plus u times that of the class itself; u ~ U(0, 1) is drawn
    for each example, in calibration and in use, and makes the coverage exact where probabilities are tied or few.

    Args:
        probs, labels, alpha: as in `plain`.
        generator: where u is drawn from, on the CPU; None takes PyTorch's own.

    Raises:
        ValueError: as in `plain`.
    """
    return _calibrated(_mass_above, probs, labels, alpha, generator)


@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """Prediction intervals: the ends of a `band`, moved outwards by `quantile` units.

    Args:
        band: the ends before calibration, and the unit.
        quantile: q̂ of each target ``(...)``; ∞ where n < 1/α − 1 examples cannot say more; below 0 where the band is
            too wide, so that an interval may even be empty (its lower end above its upper).
        alpha: the probability that is allowed to miss the label.
    """

    band: Band
    quantile: Tensor
    alpha: float

    def intervals(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """The lower and upper ends ``(n, ...)`` of each number, in units of the targets."""
        low, high, unit = self.band(prediction)
        margin = self.quantile.to(low.device) * unit
        return low - margin, high + margin

    def evaluate(self, prediction: Prediction, labels: Tensor) -> dict[str, float]:
        """Coverage and width of the intervals on test data: means over examples and targets.

        Returns:
            ``coverage``, the share of intervals with the label; ``width``, in units of the targets; ``empty``, the
            share of intervals that hold nothing.
        """
        low, high = self.intervals(prediction)
        values = regression.checked(prediction, labels)
        return {
            "coverage": float(((low <= values) & (values <= high)).double().mean()),
            "width": float((high - low).clamp(min=0).mean()),
            "empty": float((high < low).double().mean()),
        }


def absolute(prediction: Prediction, labels: Tensor, *, alpha: float) -> ConformalIntervals:
    """Intervals of one width around the predictive mean: the score is |y − mean| (Lei et al., 2018, algorithm 2).

    Args:
        prediction: of calibration examples that nothing was fitted to; of numbers per token, ``prediction.tokens()``,
            which are exchangeable only as far as they are alike.
        labels: theirs ``(n, ...)``.
        alpha: the probability, 0 < alpha < 1, that is allowed to miss the label.

    Raises:
        ValueError: alpha outside (0, 1); labels of another shape or that are not finite; a likelihood without a mean,
            for which :func:`quantiles` is made.
    """
    return _calibrated_band(_around_mean, prediction, labels, alpha)


def normalised(prediction: Prediction, labels: Tensor, *, alpha: float) -> ConformalIntervals:
    """Intervals in proportion to the predictive standard deviation: the score is |y − mean| / sd (Lei et al., 2018).

    Arguments and errors are those of :func:`absolute`; a likelihood without a finite variance is refused, too.
    """
    return _calibrated_band(_around_mean_by_sd, prediction, labels, alpha)


def quantiles(prediction: Prediction, labels: Tensor, *, alpha: float) -> ConformalIntervals:
    """Conformalised quantile regression (CQR; Romano, Patterson & Candès, 2019) of the predictive quantiles.

    The score is how far the label lies outside of the α/2 and 1 − α/2 quantiles, negative inside. It needs no moments,
    so that any likelihood of numbers can be calibrated. Arguments and errors are those of :func:`absolute`.
    """
    _check_alpha(alpha)
    return _calibrated_band(partial(_between_quantiles, alpha=alpha), prediction, labels, alpha)


def _unlikeliness(probs: Tensor, generator: Generator | None) -> Tensor:
    return 1 - probs


def _mass_above(probs: Tensor, generator: Generator | None) -> Tensor:
    ordered, order = probs.sort(dim=1, descending=True, stable=True)
    u = torch.rand(len(probs), 1, dtype=probs.dtype, generator=generator)
    scores = ordered.cumsum(dim=1) - (1 - u) * ordered
    return torch.empty_like(scores).scatter_(1, order, scores)


def _calibrated(
    score: Score, probs: Tensor, labels: Tensor, alpha: float, generator: Generator | None
) -> ConformalSets:
    _check_alpha(alpha)
    probs, labels = checked(probs, labels)
    scores = score(probs, generator).gather(1, labels[:, None])[:, 0]
    return ConformalSets(score, float(_quantile(scores, alpha)), alpha)


def _around_mean(prediction: Prediction) -> tuple[Tensor, Tensor, float]:
    mean = prediction.mean.double()
    if not mean.isfinite().all():
        raise ValueError("this likelihood has no finite mean: calibrate its quantiles, conformal.quantiles")
    return mean, mean, 1.0


def _around_mean_by_sd(prediction: Prediction) -> tuple[Tensor, Tensor, Tensor]:
    mean, _, _ = _around_mean(prediction)
    variance = prediction.variance.double()
    if not (variance.isfinite() & (variance > 0)).all():
        raise ValueError("this likelihood has no finite, positive variance: use conformal.quantiles or .absolute")
    return mean, mean, variance.sqrt()


def _between_quantiles(prediction: Prediction, *, alpha: float) -> tuple[Tensor, Tensor, float]:
    low, high = prediction.quantiles([alpha / 2, 1 - alpha / 2])
    return low, high, 1.0


def _calibrated_band(band: Band, prediction: Prediction, labels: Tensor, alpha: float) -> ConformalIntervals:
    _check_alpha(alpha)
    values = regression.checked(prediction, labels)
    low, high, unit = band(prediction)
    return ConformalIntervals(band, _quantile(torch.maximum(low - values, values - high) / unit, alpha), alpha)


def _quantile(scores: Tensor, alpha: float) -> Tensor:
    """q̂ ``(...)`` of scores ``(n, ...)``."""
    missed = math.floor((len(scores) + 1) * alpha + 1e-9)  # 100 · 0.29 is 28.999…
    return scores.sort(0).values[-missed] if missed else torch.full_like(scores[0], math.inf)


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}: 0.1 for sets that hold the truth in 90 %")
