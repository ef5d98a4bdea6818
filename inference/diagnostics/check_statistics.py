"""Test statistics T(labels, prediction) of predictive checks.

The prediction is the mean over all draws, the same for the observed and all replicated labels, so T is a function of
the labels alone. Labels per token are passed as labels of examples, without padding.

A statistic may have further parameters:

- ``x``: the inputs ``(n, ...)``, padded to the longest example; for labels per token, the inputs at real tokens.
- ``latents``: the latent sites of one posterior draw by name, ``(*event)`` of global sites and ``(n, *event)`` of local
  ones. T is then a realised discrepancy T(y, θ): see :func:`~probattn.inference.posterior_predictive_check`.

>>> def residual_slope(labels, prediction, *, x):  # a trend that the model misses
...     return ((labels - prediction.mean) * x).mean(0)
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from probattn.inference import metrics
from probattn.inference.prediction.class_labels import class_labels
from probattn.inference.prediction.result import Prediction

Statistic = Callable[..., Tensor | float]
"""A callable ``(labels (n, ...), prediction) -> number or vector (k,)``, with :data:`OPTIONAL` parameters by name."""

OPTIONAL = ("x", "latents")
"""Optional parameters of a statistic, after labels and prediction."""


def accuracy(labels: Tensor, prediction: Prediction) -> float:
    """Fraction of labels that are the most probable class of the mean prediction, 0 to 1."""
    return metrics.accuracy(prediction.probs, labels)


def class_frequencies(labels: Tensor, prediction: Prediction) -> Tensor:
    """Fraction of each class among the labels ``(classes,)``, 0 to 1."""
    classes = prediction.probs.shape[-1]
    labels = class_labels(labels, examples=len(labels), classes=classes)
    return labels.bincount(minlength=classes).double() / len(labels)


def ece(labels: Tensor, prediction: Prediction) -> float:
    """Expected calibration error of the mean prediction in 15 bins, 0 to 1 (:func:`probattn.inference.metrics.ece`).

    It is positive even for labels of a calibrated model; replicates show how large it is by chance.
    """
    return metrics.ece(prediction.probs, labels)


def entropy(labels: Tensor, prediction: Prediction) -> Tensor:
    """Entropy of the labels' empirical distribution over classes, in nats, 0 to log(classes)."""
    return torch.special.entr(class_frequencies(labels, prediction)).sum()


def mean(labels: Tensor, prediction: Prediction) -> Tensor:
    """Mean of each target, or the fraction of each binary label ``(targets,)``."""
    return labels.double().mean(0)


def std(labels: Tensor, prediction: Prediction) -> Tensor:
    """Standard deviation of each target over examples, in its units ``(targets,)``."""
    return labels.double().std(0, correction=0)


def rmse(labels: Tensor, prediction: Prediction) -> Tensor:
    """Root mean squared error of the predictive mean for each target, in its units ``(targets,)``."""
    return (labels - prediction.mean).double().square().mean(0).sqrt()


CLASSIFICATION: tuple[Statistic, ...] = (accuracy, class_frequencies, ece, entropy)
REGRESSION: tuple[Statistic, ...] = (mean, std, rmse)
STATISTICS: dict[str, Statistic] = {each.__name__: each for each in CLASSIFICATION + REGRESSION}


def default_statistics(prediction: Prediction) -> tuple[Statistic, ...]:
    """Return the default statistics of a prediction; RMSE only if its mean is finite."""
    if prediction.probs is not None:
        return CLASSIFICATION
    return REGRESSION if prediction.mean.isfinite().all() else (mean, std)


def resolve(statistics: Mapping[str, Statistic] | Sequence[str | Statistic]) -> dict[str, Statistic]:
    """Return statistics by name.

    Args:
        statistics: callables by name, or a sequence of names in :data:`STATISTICS` and callables, which are named by
            their ``__name__``.

    Raises:
        ValueError: no statistic, an unknown name, or a duplicate name.
    """
    if isinstance(statistics, Mapping):
        pairs = list(statistics.items())
    else:
        pairs = [(each, _by_name(each)) if isinstance(each, str) else (each.__name__, each) for each in statistics]
    if not pairs:
        raise ValueError(f"no test statistic; known: {', '.join(STATISTICS)}, or pass a callable")
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two test statistics are called {name!r}: pass a dict, {{'first': ..., 'second': ...}}")
    return dict(pairs)


def optional_parameters(statistic: Statistic) -> tuple[str, ...]:
    """Return the :data:`OPTIONAL` parameters of a statistic."""
    try:
        parameters = list(inspect.signature(statistic).parameters.values())
    except ValueError:  # a builtin has no signature
        return ()
    named = {each.name for each in parameters[2:]} | {
        each.name for each in parameters if each.kind is each.KEYWORD_ONLY
    }
    return tuple(name for name in OPTIONAL if name in named)


def evaluate(name: str, statistic: Statistic, labels: Tensor, prediction: Prediction, **optional: Any) -> Tensor:
    """Evaluate T(labels, prediction, **optional) as a tensor ``()`` or ``(k,)`` in float64 on the CPU.

    Raises:
        ValueError: NaN, or a value of another shape; the message names the statistic.
    """
    value = torch.as_tensor(statistic(labels, prediction, **optional), dtype=torch.float64).detach().cpu()
    if value.dim() > 1:
        raise ValueError(f"statistic {name!r} must return a number or a vector, got shape {tuple(value.shape)}")
    if value.isnan().any():
        raise ValueError(
            f"statistic {name!r} is NaN for some labels and cannot be ranked: use one that is defined for all"
        )
    return value


def _by_name(name: str) -> Statistic:
    if name not in STATISTICS:
        raise ValueError(f"unknown test statistic {name!r}; known: {', '.join(STATISTICS)}, or pass a callable")
    return STATISTICS[name]
