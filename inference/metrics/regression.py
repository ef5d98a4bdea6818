"""Regression metrics: errors, proper scoring rules, prediction intervals and the calibration of
quantiles.

All functions take a :class:`~probattn.inference.Prediction` of numbers, real or counts, and labels
of the shape of its mean ``(n, ...)``, and average over examples and targets in float64. With a
label per token use ``prediction.tokens()``. Intervals are central intervals of the posterior
predictive. Monte Carlo estimates (see :mod:`probattn.inference.prediction.mixture`) have a fixed
seed.

All raise ``ValueError`` for labels of the wrong shape or not finite, no examples, and predictions
of classes.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from probattn.inference.metrics.metric import table
from probattn.inference.prediction.mixture import SEED
from probattn.inference.prediction.result import Prediction

QUANTILE_LEVELS = torch.arange(1, 100, dtype=torch.float64) / 100


def validate(prediction: Prediction, labels: Tensor) -> Tensor:
    """Return the labels in float64 on the prediction's device.

    Raises:
        ValueError: a prediction of classes or of padded tokens; labels of the wrong shape, empty or
            not finite.
    """
    mean = prediction.mean
    if mean is None or prediction.mask is not None:
        raise ValueError(
            "needs a prediction of numbers without padding: for tokens prediction.tokens()"
        )
    if labels.shape != mean.shape or not labels.numel() or not labels.isfinite().all():
        raise ValueError(
            f"labels must be finite, of shape {tuple(mean.shape)}, got {tuple(labels.shape)}"
        )
    return labels.detach().to(mean.device).double()


def rmse(prediction: Prediction, labels: Tensor) -> float:
    """Root mean squared error of the predictive mean, in units of the targets; NaN if there is no
    mean."""
    return float((validate(prediction, labels) - prediction.require("mean")).square().mean().sqrt())


def mae(prediction: Prediction, labels: Tensor) -> float:
    """Mean absolute error of the predictive median, which minimises it, in units of the targets."""
    return float((validate(prediction, labels) - prediction.median).abs().mean())


def nll(prediction: Prediction, labels: Tensor) -> float:
    """Negative log predictive density of all targets of an example, mean over examples, in nats, of
    any sign."""
    validate(prediction, labels)
    return float(-prediction.log_prob(labels).double().mean())


def crps(prediction: Prediction, labels: Tensor) -> float:
    """Continuous ranked probability score E|Y − y| − ½ E|Y − Y′|, mean, in units of the targets, 0
    or more.

    In closed form for Gaussian likelihoods, as a mixture over posterior samples (Grimit et al.,
    2006, eq. 3); otherwise that of 1,000 samples of Y (Gneiting & Raftery, 2007, eq. 21). NaN if a
    target has no mean.
    """
    return float(prediction.crps(validate(prediction, labels)).mean())


def interval(prediction: Prediction, level: float) -> tuple[Tensor, Tensor]:
    """Ends of the central interval: the (1 − level)/2 and (1 + level)/2 quantiles, ``(n, ...)``
    each."""
    return tuple(prediction.quantiles([(1 - level) / 2, (1 + level) / 2]))


def pit(prediction: Prediction, labels: Tensor) -> Tensor:
    """Probability integral transform (PIT) of the labels ``(n, ...)``: uniform on (0, 1) if
    calibrated.

    F(y) for real numbers; randomised for counts, P(Y < y) + v P(Y = y) with v ~ U(0, 1) of a fixed
    seed (Czado, Gneiting & Held, 2009).
    """
    values = validate(prediction, labels)
    below = values.nextafter(values.new_tensor(-torch.inf))
    lower, upper = prediction.cdf(below), prediction.cdf(values)
    v = torch.rand(upper.shape, dtype=upper.dtype, generator=torch.Generator().manual_seed(SEED))
    return lower + v.to(upper) * (upper - lower)


def shares_below(
    prediction: Prediction, labels: Tensor, levels: Sequence[float] | Tensor
) -> Tensor:
    """Share of labels below each predicted quantile ``(L,)``: equal to the levels if calibrated."""
    transformed = pit(prediction, labels).flatten().sort().values
    levels = torch.as_tensor(levels, dtype=torch.float64, device=transformed.device)
    return torch.searchsorted(transformed, levels, right=True).double() / len(transformed)


def pit_error(prediction: Prediction, labels: Tensor) -> float:
    """Calibration error of quantiles, 0 to ½: mean of |share of labels below − level| over the
    levels 1, …, 99 %.

    It is the mean distance of the PIT's distribution function from the uniform one, about 0.3/√n by
    chance even if calibrated.
    """
    return float(
        (shares_below(prediction, labels, QUANTILE_LEVELS).cpu() - QUANTILE_LEVELS).abs().mean()
    )


def coverage(prediction: Prediction, labels: Tensor, *, level: float) -> float:
    """Share of labels in the central interval: its level if calibrated."""
    values = validate(prediction, labels)
    low, high = interval(prediction, level)
    inside = (low <= values) & (values <= high)
    return float(inside.double().mean())


def width(prediction: Prediction, labels: Tensor, *, level: float) -> float:
    """Mean width of the central interval, in units of the targets."""
    validate(prediction, labels)
    low, high = interval(prediction, level)
    return float((high - low).mean())


_OF_INTERVALS = {
    "coverage_50": partial(coverage, level=0.5),
    "width_50": partial(width, level=0.5),
    "coverage_90": partial(coverage, level=0.9),
    "width_90": partial(width, level=0.9),
}
OF_NUMBERS = table("numbers", vars() | _OF_INTERVALS)
"""Metrics of a prediction of numbers and its labels, in the order of :func:`evaluate` and of
tables."""


def evaluate(prediction: Prediction, labels: Tensor) -> dict[str, float]:
    """Compute the metrics of :data:`OF_NUMBERS`.

    Args:
        prediction: prediction of numbers.
        labels: labels of the shape of its mean.
    """
    return {name: metric.function(prediction, labels) for name, metric in OF_NUMBERS.items()}
