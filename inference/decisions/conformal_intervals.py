"""Split-conformal intervals of numbers."""

from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor

from probattn.inference.decisions.split_conformal import ConformalPredictor, means
from probattn.inference.metrics import regression
from probattn.inference.prediction.result import Prediction


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
        return means(coverage=covered, width=(high - low).clamp(min=0), empty=high < low)


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

    not_exported = "it finds quantiles by bisection; put Normalised in its place"

    def band(self, prediction: Prediction) -> tuple[Tensor, Tensor, float]:
        """Return the quantiles, and 1."""
        return *prediction.quantiles([self.alpha / 2, 1 - self.alpha / 2]), 1.0
