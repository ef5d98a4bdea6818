"""Metrics of predicted numbers: errors, proper scores, intervals and the calibration of quantiles.

Every function takes a :class:`~probattn.inference.Prediction` of numbers, real or counts, and labels of the shape of
its mean ``(n, ...)``; what it averages over is examples and targets alike, in float64. Of numbers per token take
``prediction.tokens()``. Intervals are central ones of the posterior predictive, noise and draws together. What draws
estimate (:mod:`probattn.inference.prediction.mixture` says where) is the same in every call.

All raise ``ValueError`` on labels of another shape or that are not finite, no examples, and predictions of classes.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from probattn.inference.prediction import mixture
from probattn.inference.prediction.marginals import SEED, device_of, fixed_seed, is_discrete
from probattn.inference.prediction.result import Prediction

LEVELS = (0.5, 0.9)
"""Probabilities of the intervals of :func:`evaluate`."""
GRID = torch.arange(1, 100, dtype=torch.float64) / 100


def rmse(prediction: Prediction, labels: Tensor) -> float:
    """Root mean squared distance to the predictive mean, in units of the targets; NaN where there is no mean."""
    return float((checked(prediction, labels) - prediction.mean).square().mean().sqrt())


def mae(prediction: Prediction, labels: Tensor) -> float:
    """Mean absolute distance to the predictive median, which minimises it, in units of the targets."""
    return float((checked(prediction, labels) - prediction.median).abs().mean())


def nll(prediction: Prediction, labels: Tensor) -> float:
    """Mean over examples of −log of the draws' mean likelihood of all its targets, in nats; a density has any sign."""
    checked(prediction, labels)
    return float(-prediction.log_prob(labels).double().mean())


def crps(prediction: Prediction, labels: Tensor) -> float:
    """Mean continuous ranked probability score E|Y − y| − ½ E|Y − Y′|, in units of the targets, 0 or more.

    Of Gaussian likelihoods in closed form, over the mixture of the draws (Grimit et al., 2006, eq. 3), and of others
    unbiased from 200 draws of Y (Gneiting & Raftery, 2007, eq. 21), so that it may lie below 0 by chance. NaN where a
    target has no mean.
    """
    values = checked(prediction, labels)
    parts = values.split([each.batch_shape[-1] for each in prediction.components])
    pairs = zip(prediction.components, parts, strict=True)
    with fixed_seed(device_of(prediction.components[0])):
        return float(torch.cat([mixture.crps(each, part.to(device_of(each))) for each, part in pairs]).mean())


def interval(prediction: Prediction, level: float) -> tuple[Tensor, Tensor]:
    """The ends of the central interval: the (1 − level)/2 and (1 + level)/2 quantiles, ``(n, ...)`` each."""
    low, high = prediction.quantiles([(1 - level) / 2, (1 + level) / 2])
    return low, high


def coverage(prediction: Prediction, labels: Tensor, *, level: float) -> float:
    """Share of labels in the central interval, ends included; ``level`` is right, of counts at least that."""
    values = checked(prediction, labels)
    return _share_inside(values, *interval(prediction, level))


def width(prediction: Prediction, *, level: float) -> float:
    """Mean width of the central interval, in units of the targets."""
    low, high = interval(prediction, level)
    return float((high - low).mean())


def pit(prediction: Prediction, labels: Tensor, *, generator: Generator | None = None) -> Tensor:
    """Probability integral transform of the labels, ``(n, ...)``: uniform on (0, 1) if the predictive is calibrated.

    F(y), and of counts P(Y < y) + v P(Y = y) with v ~ U(0, 1) (Czado, Gneiting & Held, 2009).

    Args:
        prediction: the prediction.
        labels: its labels.
        generator: where v is drawn from, on the CPU; None takes the same v in every call.
    """
    values = checked(prediction, labels)
    upper = prediction.cdf(values)
    if not is_discrete(prediction.components[0]):
        return upper
    lower = prediction.cdf(values, below=True)
    generator = torch.Generator().manual_seed(SEED) if generator is None else generator
    return lower + torch.rand(upper.shape, dtype=upper.dtype, generator=generator).to(upper) * (upper - lower)


def shares_below(prediction: Prediction, labels: Tensor, levels: Sequence[float] | Tensor) -> Tensor:
    """Share of labels below each predicted quantile ``(L,)``: the levels themselves if the predictive is calibrated."""
    transformed = pit(prediction, labels).flatten().sort().values
    levels = torch.as_tensor(levels, dtype=torch.float64, device=transformed.device)
    return torch.searchsorted(transformed, levels, right=True).double() / len(transformed)


def pit_error(prediction: Prediction, labels: Tensor) -> float:
    """Calibration error of quantiles, 0 to ½: mean of |share of labels below − level| over the levels 1, …, 99 %.

    The mean distance of the PIT's distribution function to the uniform one. Even of a perfect predictive it is about
    0.3/√n by chance.
    """
    return float((shares_below(prediction, labels, GRID).cpu() - GRID).abs().mean())


def evaluate(prediction: Prediction, labels: Tensor, *, levels: Sequence[float] = LEVELS) -> dict[str, float]:
    """All metrics: ``rmse``, ``mae``, ``nll``, ``crps``, ``pit_error``, ``coverage_P`` and ``width_P`` (P in percent).

    Args:
        prediction: of numbers.
        labels: in the shape of its mean.
        levels: probabilities of the intervals.
    """
    values = checked(prediction, labels)
    ends = [(1 + sign * level) / 2 for level in levels for sign in (-1, 1)]
    median, *ends = prediction.quantiles([0.5, *ends])  # all at once
    found = {
        "rmse": rmse(prediction, labels),
        "mae": float((values - median).abs().mean()),
        "nll": nll(prediction, labels),
        "crps": crps(prediction, labels),
        "pit_error": pit_error(prediction, labels),
    }
    for level, low, high in zip(levels, ends[::2], ends[1::2], strict=True):
        found[f"coverage_{100 * level:g}"] = _share_inside(values, low, high)
        found[f"width_{100 * level:g}"] = float((high - low).mean())
    return found


def _share_inside(values: Tensor, low: Tensor, high: Tensor) -> float:
    return float(((low <= values) & (values <= high)).double().mean())


def checked(prediction: Prediction, labels: Tensor) -> Tensor:
    """The labels in float64 on the prediction's device."""
    if prediction.mean is None:
        raise ValueError("this is a prediction of classes: metrics.evaluate takes its probabilities")
    if prediction.mask is not None:
        raise ValueError("this prediction has padding between its tokens: take prediction.tokens()")
    if labels.shape != prediction.mean.shape:
        raise ValueError(f"labels must have shape {tuple(prediction.mean.shape)}, got {tuple(labels.shape)}")
    if not labels.numel():
        raise ValueError("no labels: a metric needs at least one example")
    values = labels.detach().to(prediction.mean.device).double()
    if not values.isfinite().all():
        raise ValueError(f"NaN or Inf in {int((~values.isfinite()).sum())} labels")
    return values
