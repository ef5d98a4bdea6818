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
from abc import abstractmethod
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from probattn.inference.decisions.conformal_intervals import CQR, ConformalIntervals, Normalised
from probattn.inference.decisions.split_conformal import (
    SHORTFALL,
    ConformalPredictor,
    conformal_quantile,
    means,
    min_examples,
)
from probattn.inference.metrics import valid_probs, validate
from probattn.inference.prediction.predictor import Predictor, labelled_classes
from probattn.inference.prediction.result import Prediction

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "SHORTFALL",
    "ByClass",
    "ConformalIntervals",
    "ConformalPredictor",
    "ConformalSets",
    "Normalised",
    "conformal_quantile",
    "min_examples",
]


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
        return means(
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
