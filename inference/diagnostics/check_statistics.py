"""Test statistics T(labels, prediction) of predictive checks.

The prediction is the mean over all draws and the same for the labels of the data and for every replicate, so that T is
a function of the labels alone. Labels of tokens come as those of examples, without padding.

A statistic gets more by naming it in its signature:

- ``x``: the inputs ``(n, ...)``, padded to the longest example; where labels are of tokens, those of the real tokens.
- ``latents``: the latent sites of one posterior draw by name, ``(*event)`` of what all examples share and
  ``(n, *event)`` of what each has of its own. T is then a realised discrepancy T(y, θ): see
  :func:`~probattn.inference.posterior_predictive_check`.

>>> def residual_slope(labels, prediction, *, x):  # a trend that the model has missed
...     return ((labels - prediction.mean) * x).mean(0)
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from probattn.inference import metrics
from probattn.inference.prediction.result import Prediction

Statistic = Callable[..., Tensor | float]
"""A callable ``(labels (n, ...), prediction) -> number or vector (k,)``, which may ask for :data:`MORE` by name."""

MORE = ("x", "latents")
"""Arguments that a statistic may take beside labels and prediction, as parameters behind them."""


def accuracy(labels: Tensor, prediction: Prediction) -> float:
    """Share of labels that are the most probable class of the mean prediction, 0 to 1."""
    return metrics.accuracy(prediction.probs, labels)


def class_frequencies(labels: Tensor, prediction: Prediction) -> Tensor:
    """Share of each class among the labels ``(classes,)``, 0 to 1."""
    return labels.bincount(minlength=prediction.probs.shape[-1]).double() / len(labels)


def ece(labels: Tensor, prediction: Prediction) -> float:
    """Expected calibration error of the mean prediction in 15 bins, 0 to 1 (:func:`probattn.inference.metrics.ece`).

    Labels from a calibrated model have one above 0 too: replicates show how large it is by chance.
    """
    return metrics.ece(prediction.probs, labels)


def entropy(labels: Tensor, prediction: Prediction) -> Tensor:
    """Entropy of the labels' empirical distribution over classes, in nats, 0 to log(classes)."""
    return torch.special.entr(class_frequencies(labels, prediction)).sum()


def mean(labels: Tensor, prediction: Prediction) -> Tensor:
    """Mean of each target, or the share of each of several labels ``(targets,)``."""
    return labels.double().mean(0)


def std(labels: Tensor, prediction: Prediction) -> Tensor:
    """Standard deviation of each target over examples, in its units ``(targets,)``."""
    return labels.double().std(0, correction=0)


def rmse(labels: Tensor, prediction: Prediction) -> Tensor:
    """Root mean squared distance of each target to its predictive mean, in its units ``(targets,)``."""
    return (labels - prediction.mean).double().square().mean(0).sqrt()


OF_CLASSES: tuple[Statistic, ...] = (accuracy, class_frequencies, ece, entropy)
OF_NUMBERS: tuple[Statistic, ...] = (mean, std, rmse)
STATISTICS: dict[str, Statistic] = {each.__name__: each for each in OF_CLASSES + OF_NUMBERS}


def of_kind(prediction: Prediction) -> tuple[Statistic, ...]:
    """The default statistics of a prediction: those of classes, or of numbers, without RMSE where there is no mean."""
    if prediction.probs is not None:
        return OF_CLASSES
    return OF_NUMBERS if prediction.mean.isfinite().all() else (mean, std)


def resolve(statistics: Mapping[str, Statistic] | Sequence[str | Statistic]) -> dict[str, Statistic]:
    """Statistics by name.

    Args:
        statistics: callables by name, or a sequence of names out of :data:`STATISTICS` and callables, which go by their
            ``__name__``.

    Raises:
        ValueError: no statistic, an unknown name, or two of one name.
    """
    if isinstance(statistics, Mapping):
        pairs = list(statistics.items())
    else:
        pairs = [(each, _known(each)) if isinstance(each, str) else (each.__name__, each) for each in statistics]
    if not pairs:
        raise ValueError(f"no test statistic to check; known: {', '.join(STATISTICS)}, or give a callable")
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two test statistics are called {name!r}: name them, {{'first': ..., 'second': ...}}")
    return dict(pairs)


def asks_for(statistic: Statistic) -> tuple[str, ...]:
    """Those of :data:`MORE` that are parameters of a statistic, beside its first two."""
    try:
        parameters = list(inspect.signature(statistic).parameters.values())
    except ValueError:  # a builtin has no signature
        return ()
    named = {each.name for each in parameters[2:]} | {
        each.name for each in parameters if each.kind is each.KEYWORD_ONLY
    }
    return tuple(name for name in MORE if name in named)


def evaluate(name: str, statistic: Statistic, labels: Tensor, prediction: Prediction, **more: Any) -> Tensor:
    """T(labels, prediction, **more) as a tensor ``()`` or ``(k,)`` in float64 on the CPU.

    Raises:
        ValueError: NaN, or a value of another shape, with the name of the statistic.
    """
    value = torch.as_tensor(statistic(labels, prediction, **more), dtype=torch.float64).detach().cpu()
    if value.dim() > 1:
        raise ValueError(f"statistic {name!r} must give a number or a vector, got shape {tuple(value.shape)}")
    if value.isnan().any():
        raise ValueError(f"statistic {name!r} is NaN for some labels and cannot be ranked: use one that exists for all")
    return value


def _known(name: str) -> Statistic:
    if name not in STATISTICS:
        raise ValueError(f"unknown test statistic {name!r}; known: {', '.join(STATISTICS)}, or give a callable")
    return STATISTICS[name]
