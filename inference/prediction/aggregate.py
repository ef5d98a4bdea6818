"""Aggregation of a likelihood over S posterior samples into a :class:`Prediction`, of batches into
one, and of predictors."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor

from probattn.functional import errors, padding
from probattn.inference.non_finite import NonFiniteOutputError
from probattn.inference.prediction.class_labels import check_shape, entropy
from probattn.inference.prediction.mixture import innermost, parameter_checks, token_mask, values
from probattn.inference.prediction.result import PER_EXAMPLE, Prediction

AVERAGED = ("probs", "expected_entropy", "energy")
"""Fields of a prediction of classes that are means over posterior samples."""


def summarise(
    likelihood: dist.TorchDistribution,
    labels: Tensor | None,
    device: torch.device,
    *,
    num_samples: int,
    keep_draws: bool = False,
) -> Prediction:
    """Average the likelihood of a batch over posterior samples.

    Args:
        likelihood: of batch shape ``(S, batch)``, or ``(batch,)`` if nothing was sampled.
        labels: labels that came with the inputs, or None.
        device: device of the result, except its components.
        num_samples: S.
        keep_draws: keep the probabilities of each sample.

    Raises:
        NonFiniteOutputError: as :func:`check_outputs` raises.
        ValueError: labels whose shape differs from the likelihood's.
    """
    deterministic = len(likelihood.batch_shape) == 1
    if deterministic:
        likelihood = likelihood.expand((num_samples, *likelihood.batch_shape))
    check_outputs(likelihood)
    mask = token_mask(likelihood)
    inner = innermost(likelihood)
    of_classes = isinstance(inner, torch.distributions.Categorical)
    draws = None
    if of_classes:
        probs = values(likelihood, "probs")
        if mask is not None:
            probs = probs.where(mask.unsqueeze(-1), 0.0)
        if keep_draws:
            draws = probs.to(device)
        used = 1 if deterministic else num_samples  # the mean of S copies differs in the last bit
        fields: dict[str, Any] = {
            "probs": probs[:used].mean(0),
            "expected_entropy": entropy(probs[:used]).mean(0),
        }
        if hasattr(inner, "energy"):
            fields["energy"] = values(likelihood, "energy")[:used].mean(0)
    else:
        means = values(likelihood, "mean")
        fields = {
            "mean": means.mean(0),
            "variance": values(likelihood, "variance").mean(0) + means.var(0, correction=0),
        }
    if labels is not None:
        check_shape(labels, (likelihood.batch_shape[1], *likelihood.event_shape))
        if mask is not None:  # zeros at padding, whatever the dtype
            real = mask.to(labels.device)[(..., *(None,) * (labels.dim() - 2))]
            labels = labels.where(real, 0)
    fields = {name: padding.zeroed(value, mask) for name, value in fields.items()}
    if mask is not None:
        fields["mask"] = mask
    return Prediction(
        **{name: value.to(device) for name, value in fields.items()},
        draws=draws,
        ordered=getattr(inner, "is_ordered", False),
        labels=labels,
        components=() if of_classes and mask is None else (likelihood,),
        num_samples=num_samples,
    )


def check_outputs(likelihood: dist.TorchDistribution) -> None:
    """Check that the network's outputs are parameters of the likelihood, whether or not PyTorch has
    checked them.

    Raises:
        NonFiniteOutputError: NaN or Inf, or what the likelihood does not take.
    """
    if isinstance(innermost(likelihood), torch.distributions.Categorical):
        checks = [values(likelihood, "probs").isfinite().all()]
    else:
        checks = parameter_checks(likelihood)
    if checks:
        message = "the network's outputs are NaN or Inf: load an earlier checkpoint"
        errors.refuse(~torch.stack(checks), lambda _: NonFiniteOutputError(message))


def join(parts: Sequence[Prediction]) -> Prediction:
    """Concatenate predictions along the examples, with tokens padded by 0 to the longest example.

    Raises:
        TypeError: labels, or another field, in some of them only.
        ValueError: no predictions.
    """
    if not parts:
        raise ValueError("no data to predict: the loader gave no batch")
    masks = [prediction.mask for prediction in parts if prediction.mask is not None]
    tokens = max((mask.shape[1] for mask in masks), default=None)

    def concatenate(field: str, dim: int = 0) -> Tensor | None:
        values = [getattr(prediction, field) for prediction in parts]
        tensors = [value for value in values if value is not None]
        if not tensors:
            return None
        if len(tensors) < len(parts):
            raise TypeError(f"only some batches have {field}: give them to all, or to none")
        if tokens is not None:
            after = [0, 0] * (tensors[0].dim() - dim - 2)  # dimensions after that of the tokens
            tensors = [F.pad(x, [*after, 0, tokens - x.shape[dim + 1]]) for x in tensors]
        return torch.cat(tensors, dim)

    joined: dict[str, Any] = {field: concatenate(field) for field in PER_EXAMPLE}
    return Prediction(
        **joined,
        draws=concatenate("draws", 1),
        ordered=parts[0].ordered,
        num_samples=parts[0].num_samples,
        components=tuple(chain.from_iterable(prediction.components for prediction in parts)),
    )


def mix(predictions: Sequence[Prediction], weights: Sequence[int] | None = None) -> Prediction:
    """Mix predictions of the same examples, in the same order.

    Probabilities, expected entropy and energy are means over members, so the mutual information
    includes disagreement within and between members. Draws are concatenated to
    ``(Σ S, n, classes)``. The expected entropy of a member of one sample is its entropy. Optional
    fields that a member lacks are None.

    Args:
        predictions: one or more predictions with ``probs (n, classes)``.
        weights: of each; equal by default.

    Raises:
        ValueError: no predictions, or not of one class per example; different labels, examples or
            classes; different numbers of draws, whose mean would differ from that of the members.
    """
    if not predictions:
        raise ValueError("a mixture has at least one member")
    shapes = [tuple(class_probs(prediction).shape) for prediction in predictions]
    if any(shape != shapes[0] for shape in shapes):  # of symbols in programs, which no set takes
        raise ValueError(f"members must predict the same examples and classes, got {shapes}")
    labels = predictions[0].labels
    if not all(_same(prediction.labels, labels) for prediction in predictions):
        raise ValueError(
            "the labels of the members differ: each must see the examples in one order; do not "
            "shuffle"
        )
    draws = of_all(predictions, "draws")
    numbers = [len(values) for values in draws]
    if len(set(numbers)) > 1:
        raise ValueError(f"members have different numbers of draws: {numbers}")
    predictions = list(map(_with_entropy, predictions))
    weights = weights or [1] * len(predictions)
    means: dict[str, Any] = {}
    for name in AVERAGED:
        if values := of_all(predictions, name):
            weighted = [weight * value for weight, value in zip(weights, values, strict=True)]
            means[name] = torch.stack(weighted).sum(0) / sum(weights)
    return Prediction(
        **means,
        draws=torch.cat(draws) if draws else None,
        labels=labels,
        num_samples=sum(of_all(predictions, "num_samples")) or None,
    )


def class_probs(prediction: Prediction) -> Tensor:
    """Return the mean probabilities ``(n, classes)`` of a prediction of one class per example.

    Raises:
        ValueError: another kind of prediction, or fewer than two classes.
    """
    probs = prediction.require("probs")
    if probs.dim() != 2 or probs.shape[1] < 2:
        raise ValueError(
            "needs probabilities (n, classes ≥ 2), of one class per example, got "
            f"{tuple(probs.shape)}: for tokens use prediction.tokens(), and no refine"
        )
    return probs


def _with_entropy(prediction: Prediction) -> Prediction:
    """Return a prediction by one function with its entropy as the expected one."""
    if prediction.num_samples != 1 or prediction.expected_entropy is not None:
        return prediction
    return replace(prediction, expected_entropy=prediction.entropy)


def of_all(predictions: Sequence[Prediction], name: str) -> list[Any]:
    """Return a field of each prediction; nothing if one of them lacks it."""
    values = [getattr(prediction, name) for prediction in predictions]
    return [] if any(value is None for value in values) else values


def _same(labels: Tensor | None, others: Tensor | None) -> bool:
    return labels is others if labels is None or others is None else torch.equal(labels, others)
