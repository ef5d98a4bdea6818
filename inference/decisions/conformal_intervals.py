"""Split-conformal intervals of numbers (see :mod:`~probattn.inference.decisions.conformal`)."""

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor

from probattn.inference.decisions.conformal_predictor import ConformalPredictor, conformal_quantile
from probattn.inference.metrics import regression
from probattn.inference.prediction.predictor import Predictor, labelled
from probattn.inference.prediction.result import Prediction


class ConformalIntervals(ConformalPredictor):
    """Base class of conformal prediction intervals: the ends of a band, moved outwards by q̂ units.

    Exported, they add ``low`` and ``high`` ``(batch, ...)`` to the outputs of their predictor.

    Args:
        predictor: any predictor of numbers; None to decide on predictions of others.
        alpha: allowed probability of missing the label, 0 < alpha < 1.

    Attributes:
        quantile: q̂ of each target ``(...)``, float64 on the CPU; ∞ if there are n < 1/α − 1 calibration examples;
            negative if the band is too wide, so that intervals may be empty (lower end above upper end).
    """

    def __init__(self, predictor: Predictor | None = None, *, alpha: float) -> None:
        super().__init__(predictor, alpha=alpha)
        self.quantile = torch.tensor(math.nan, dtype=torch.float64)

    @abstractmethod
    def band(self, prediction: Prediction) -> tuple[Tensor, Tensor, Tensor | float]:
        """Return lower and upper ends ``(n, ...)`` before calibration, and the unit of q̂."""

    def fit(self, data: Iterable) -> Self:
        """Calibrate on labelled batches, which nothing was fitted to."""
        return self.fit_prediction(self.base().predict(data))

    def fit_prediction(self, prediction: Prediction) -> Self:
        """Calibrate on a prediction with its labels, which nothing was fitted to.

        With a label per token use ``prediction.tokens()``; coverage then assumes that tokens are exchangeable.

        Raises:
            ValueError: labels of the wrong shape or not finite; a likelihood without the moments that the band needs.
        """
        values = regression.validate(prediction, labelled(prediction))
        low, high, unit = self._checked_band(prediction)
        self.quantile = conformal_quantile(torch.maximum(low - values, values - high) / unit, self.alpha).cpu().clone()
        self.fitted = True
        return self

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Predict one batch, with ``low`` and ``high``."""
        self.check_fitted()
        prediction = self.predict_batch(x, mask)
        low, high = self._move_ends(*self.band(prediction))
        return {"mean": prediction.mean, "variance": prediction.variance, "low": low, "high": high}

    def predict_interval(self, data: Tensor | Iterable) -> tuple[Tensor, Tensor]:
        """Predict inputs or batches, and return their :meth:`intervals`."""
        return self.intervals(self.predict(data))

    def intervals(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends ``(n, ...)``, in units of the targets.

        Raises:
            ValueError: other targets than in calibration.
        """
        self.check_fitted()
        low, high, unit = self._checked_band(prediction)
        if low.shape[1:] != self.quantile.shape:
            raise ValueError(
                f"these conformal intervals were calibrated on targets of shape {tuple(self.quantile.shape)}, and the "
                f"prediction has {tuple(low.shape[1:])}: calibrate on predictions of the same model"
            )
        return self._move_ends(low, high, unit)

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

    def get_extra_state(self) -> Tensor:
        """Return ``fitted``, alpha, and the shape and values of the quantile, in float64."""
        shape = self.quantile.shape
        values = [self.fitted, self.alpha, len(shape), *shape, *self.quantile.flatten().tolist()]
        return torch.tensor(values, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Set ``fitted``, alpha and the quantile."""
        fitted, self.alpha, dims, *rest = state.tolist()
        dims = int(dims)
        self.fitted = bool(fitted)
        self.quantile = torch.tensor(rest[dims:], dtype=torch.float64).reshape([int(size) for size in rest[:dims]])

    def _checked_band(self, prediction: Prediction) -> tuple[Tensor, Tensor, Tensor | float]:
        """Return the band if it is finite, with a positive unit."""
        low, high, unit = self.band(prediction)
        if not low.isfinite().all():
            raise ValueError("this likelihood has no finite mean: calibrate its quantiles by conformal.CQR")
        if isinstance(unit, Tensor) and not (unit.isfinite() & (unit > 0)).all():
            raise ValueError(
                "this likelihood has no finite, positive variance: use conformal.CQR or conformal.Absolute"
            )
        return low, high, unit

    def _move_ends(self, low: Tensor, high: Tensor, unit: Tensor | float) -> tuple[Tensor, Tensor]:
        margin = self.quantile.to(low.device) * unit
        return low - margin, high + margin


class Absolute(ConformalIntervals):
    """Intervals of constant width around the predictive mean: score ``|y − mean|`` (Lei et al., 2018, alg. 2).

    Arguments are those of :class:`ConformalIntervals`; the likelihood must have a mean.
    """

    def band(self, prediction: Prediction) -> tuple[Tensor, Tensor, float]:
        """Return the mean twice, and 1."""
        mean = prediction.mean.double()
        return mean, mean, 1.0


class Normalised(ConformalIntervals):
    """Intervals proportional to the predictive standard deviation: score ``|y − mean| / sd`` (Lei et al., 2018).

    Arguments are those of :class:`ConformalIntervals`; the likelihood must have a mean and a finite variance.
    """

    def band(self, prediction: Prediction) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean twice, and the standard deviation."""
        mean = prediction.mean.double()
        return mean, mean, prediction.variance.double().sqrt()


class CQR(ConformalIntervals):
    """Calibrated predictive quantiles: conformalised quantile regression (CQR; Romano, Patterson & Candès, 2019).

    The score is the distance of the label to the interval of the α/2 and 1 − α/2 quantiles, negative inside. It needs
    no moments, so it works for all likelihoods of numbers. Quantiles are found by bisection until they converge, which
    a program cannot, so it is not exported. Arguments are those of :class:`ConformalIntervals`.
    """

    def band(self, prediction: Prediction) -> tuple[Tensor, Tensor, float]:
        """Return the quantiles, and 1."""
        if torch.compiler.is_exporting():
            raise NotImplementedError(
                "CQR finds the quantiles of a mixture by a loop that stops when they have converged, which "
                "torch.export cannot record: export conformal.Absolute or conformal.Normalised"
            )
        low, high = prediction.quantiles([self.alpha / 2, 1 - self.alpha / 2])
        return low, high, 1.0
