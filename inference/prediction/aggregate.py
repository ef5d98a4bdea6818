"""Aggregation of a likelihood over S posterior samples into a :class:`Prediction`, and of batches
into one."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.functional import errors, padding
from probattn.inference.non_finite import NonFiniteOutputError
from probattn.inference.prediction.class_labels import check_shape
from probattn.inference.prediction.mixture import innermost, parameter_checks, token_mask, values
from probattn.inference.prediction.result import PER_EXAMPLE, Prediction, entropy


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
        variances = values(likelihood, "variance")
        fields = {"mean": means.mean(0), "variance": variances.mean(0) + means.var(0, correction=0)}
    if labels is not None:
        check_shape(labels, (likelihood.batch_shape[1], *likelihood.event_shape))
        labels = _zeroed_labels(labels, mask)
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


def _zeroed_labels(labels: Tensor, mask: Tensor | None) -> Tensor:
    """Return labels ``(batch, tokens, ...)``, of whatever dtype, with 0 at padding."""
    if mask is None:
        return labels
    real = mask.to(labels.device)[(..., *(None,) * (labels.dim() - 2))]
    return labels.where(real, 0)


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
            missing = [tokens - x.shape[dim + 1] for x in tensors]
            pairs = zip(tensors, missing, strict=True)
            tensors = [nn.functional.pad(x, [*after, 0, number]) for x, number in pairs]
        return torch.cat(tensors, dim)

    joined: dict[str, Any] = {field: concatenate(field) for field in PER_EXAMPLE}
    return Prediction(
        **joined,
        draws=concatenate("draws", 1),
        ordered=parts[0].ordered,
        num_samples=parts[0].num_samples,
        components=tuple(chain.from_iterable(prediction.components for prediction in parts)),
    )
