"""Regression metrics: errors, proper scoring rules, prediction intervals and the calibration of quantiles.

All functions take a :class:`~probattn.inference.Prediction` of numbers, real or counts, and labels of the shape of its
mean ``(n, ...)``, and average over examples and targets in float64. With a label per token use ``prediction.tokens()``.
Intervals are central intervals of the posterior predictive. Monte Carlo estimates (see
:mod:`probattn.inference.prediction.mixture`) have a fixed seed.

All raise ``ValueError`` for labels of the wrong shape or not finite, no examples, and predictions of classes.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from probattn.inference.prediction.mixture import SEED, is_discrete
from probattn.inference.prediction.result import Prediction

INTERVAL_LEVELS = (0.5, 0.9)
"""Probabilities of the intervals of :func:`evaluate`."""
QUANTILE_LEVELS = torch.arange(1, 100, dtype=torch.float64) / 100


def validate(prediction: Prediction, labels: Tensor) -> Tensor:
    """Return the labels in float64 on the prediction's device.

    Raises:
        ValueError: a prediction of classes or of padded tokens; labels of the wrong shape, empty or not finite.
    """
    if prediction.mean is None or prediction.mask is not None:
        raise ValueError("needs a prediction of numbers without padding: for tokens prediction.tokens()")
    if labels.shape != prediction.mean.shape or not labels.numel() or not labels.isfinite().all():
        raise ValueError(f"labels must be finite, of shape {tuple(prediction.mean.shape)}, got {tuple(labels.shape)}")
    return labels.detach().to(prediction.mean.device).double()


def rmse(prediction: Prediction, labels: Tensor) -> float:
    """Root mean squared error of the predictive mean, in units of the targets; NaN if there is no mean."""
    return float((validate(prediction, labels) - prediction.mean).square().mean().sqrt())


def mae(prediction: Prediction, labels: Tensor) -> float:
    """Mean absolute error of the predictive median, which minimises it, in units of the targets."""
    return float((validate(prediction, labels) - prediction.median).abs().mean())


def nll(prediction: Prediction, labels: Tensor) -> float:
    """Negative log predictive density of all targets of an example, mean over examples, in nats, of any sign."""
    validate(prediction, labels)
    return float(-prediction.log_prob(labels).double().mean())


def crps(prediction: Prediction, labels: Tensor) -> float:
    """Continuous ranked probability score E|Y − y| − ½ E|Y − Y′|, mean, in units of the targets, 0 or more.

    In closed form for Gaussian likelihoods, as a mixture over posterior samples (Grimit et al., 2006, eq. 3); otherwise
    an unbiased estimate from 1,000 samples of Y (Gneiting & Raftery, 2007, eq. 21), which may be below 0 by chance. NaN
    if a target has no mean.
    """
    return float(prediction.crps(validate(prediction, labels)).mean())


def interval(prediction: Prediction, level: float) -> tuple[Tensor, Tensor]:
    """Ends of the central interval: the (1 − level)/2 and (1 + level)/2 quantiles, ``(n, ...)`` each."""
    low, high = prediction.quantiles([(1 - level) / 2, (1 + level) / 2])
    return low, high


def coverage(prediction: Prediction, labels: Tensor, *, level: float) -> float:
    """Share of labels in the central interval, ends included; ``level`` if calibrated, at least that for counts."""
    return _share_within(validate(prediction, labels), *interval(prediction, level))


def width(prediction: Prediction, *, level: float) -> float:
    """Mean width of the central interval, in units of the targets."""
    low, high = interval(prediction, level)
    return float((high - low).mean())


def pit(prediction: Prediction, labels: Tensor, *, generator: Generator | None = None) -> Tensor:
    """Probability integral transform (PIT) of the labels ``(n, ...)``: uniform on (0, 1) if calibrated.

    F(y) for real numbers; randomised for counts, P(Y < y) + v P(Y = y) with v ~ U(0, 1) (Czado, Gneiting & Held, 2009).

    Args:
        prediction: the prediction.
        labels: its labels.
        generator: generator of v, on the CPU; None uses a fixed seed.
    """
    values = validate(prediction, labels)
    upper = prediction.cdf(values)
    if not is_discrete(prediction.components[0]):
        return upper
    lower = prediction.cdf(values, below=True)
    generator = torch.Generator().manual_seed(SEED) if generator is None else generator
    return lower + torch.rand(upper.shape, dtype=upper.dtype, generator=generator).to(upper) * (upper - lower)


def shares_below(prediction: Prediction, labels: Tensor, levels: Sequence[float] | Tensor) -> Tensor:
    """Share of labels below each predicted quantile ``(L,)``: equal to the levels if calibrated."""
    transformed = pit(prediction, labels).flatten().sort().values
    levels = torch.as_tensor(levels, dtype=torch.float64, device=transformed.device)
    return torch.searchsorted(transformed, levels, right=True).double() / len(transformed)


def pit_error(prediction: Prediction, labels: Tensor) -> float:
    """Calibration error of quantiles, 0 to ½: mean of |share of labels below − level| over the levels 1, …, 99 %.

    It is the mean distance of the PIT's distribution function from the uniform one, about 0.3/√n by chance even if
    calibrated.
    """
    return float((shares_below(prediction, labels, QUANTILE_LEVELS).cpu() - QUANTILE_LEVELS).abs().mean())


def evaluate(prediction: Prediction, labels: Tensor, *, levels: Sequence[float] = INTERVAL_LEVELS) -> dict[str, float]:
    """Compute ``rmse``, ``mae``, ``nll``, ``crps``, ``pit_error``, and ``coverage_P`` and ``width_P`` (P in percent).

    Args:
        prediction: prediction of numbers.
        labels: labels of the shape of its mean.
        levels: probabilities of the intervals.
    """
    values = validate(prediction, labels)
    scores = {score.__name__: score(prediction, labels) for score in (rmse, mae, nll, crps, pit_error)}
    ends = prediction.quantiles([(1 + sign * level) / 2 for level in levels for sign in (-1, 1)])  # all at once
    for level, low, high in zip(levels, ends[::2], ends[1::2], strict=True):
        scores[f"coverage_{100 * level:g}"] = _share_within(values, low, high)
        scores[f"width_{100 * level:g}"] = float((high - low).mean())
    return scores


def _share_within(values: Tensor, low: Tensor, high: Tensor) -> float:
    return float(((low <= values) & (values <= high)).double().mean())
