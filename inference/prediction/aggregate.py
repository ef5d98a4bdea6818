"""What is kept of a likelihood under S draws."""

from collections.abc import Sequence
from dataclasses import replace

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.distributions import OrderedCategorical
from probattn.functional import errors
from probattn.inference.prediction.marginals import device_of, masked_part, moments, unwrap
from probattn.inference.prediction.result import Prediction, entropy
from probattn.pyro_compat import mask_of


def summarise(
    likelihood: dist.TorchDistribution,
    labels: Tensor | None,
    home: torch.device,
    *,
    num_samples: int,
    keep_draws: bool,
) -> Prediction:
    """The prediction of some examples.

    Args:
        likelihood: of batch shape ``(S, batch)``, or ``(batch,)`` where nothing was drawn.
        labels: the labels that came with the inputs, or None.
        home: the device of the result, but for its components.
        num_samples: S.
        keep_draws: whether to keep the probabilities of each draw.

    Raises:
        ValueError: outputs that are NaN or Inf; labels of another shape than the likelihood's.
    """
    deterministic = len(likelihood.batch_shape) == 1
    if deterministic:
        likelihood = likelihood.expand((num_samples, *likelihood.batch_shape))
    base, mask = unwrap(likelihood), counted(likelihood)
    if not isinstance(base, torch.distributions.Categorical):
        means, variances = moments(likelihood)
        mean, variance = means.mean(0), variances.mean(0) + means.var(0, correction=0)
        if mask is not None:
            mean, variance = (value.where(_behind(mask, value), 0.0) for value in (mean, variance))
            labels = None if labels is None else _at_tokens(labels, mask, likelihood.event_shape)
        return Prediction(
            mask=None if mask is None else mask.to(home),
            mean=mean.to(home),
            variance=variance.to(home),
            labels=labels,
            components=(likelihood,),
        )
    probs, energy = base.probs, getattr(base, "energy", None)
    why = "the network's outputs are NaN or Inf: its weights are broken, load a checkpoint before that"
    errors.refuse(~probs.isfinite(), lambda _: ValueError(why))
    if likelihood.event_shape:
        mask = torch.ones_like(probs[0, ..., 0], dtype=torch.bool) if mask is None else mask
        probs = probs.where(mask.unsqueeze(-1), 0.0)
        energy = None if energy is None else energy.where(mask, 0.0)
        labels = None if labels is None else _at_tokens(labels, mask, likelihood.event_shape)
    else:
        mask = None
    draws = probs.to(home) if keep_draws else None
    if deterministic:  # the mean of copies would differ from them in the last bit, and give mutual information
        probs = probs[:1]
    return Prediction(
        probs=probs.mean(0).to(home),
        expected_entropy=entropy(probs).mean(0).to(home),
        energy=None if energy is None else energy[: len(probs)].mean(0).to(home),
        draws=draws,
        ordered=isinstance(base, OrderedCategorical),
        mask=None if mask is None else mask.to(home),
        labels=labels,
        components=() if mask is None else (likelihood,),
    )


def join(parts: Sequence[Prediction]) -> Prediction:
    """One prediction of all examples of several, whose tokens are padded to the longest example."""
    if parts[0].mask is not None:
        shape = [max(sizes) for sizes in zip(*(part.mask.shape[1:] for part in parts), strict=True)]
        parts = [_padded(part, shape) for part in parts]

    def cat(field: str, dim: int = 0) -> Tensor | None:
        values = [getattr(part, field) for part in parts]
        return None if values[0] is None else torch.cat(values, dim)

    fields = ("probs", "expected_entropy", "energy", "mask", "mean", "variance", "labels")
    return Prediction(
        **{field: cat(field) for field in fields},
        draws=cat("draws", 1),
        ordered=parts[0].ordered,
        components=tuple(component for part in parts for component in part.components),
    )


def _padded(part: Prediction, shape: Sequence[int]) -> Prediction:
    """The prediction with 0 (no token) behind its tokens, up to that many."""
    behind = [0] * (2 * len(shape))
    behind[1::2] = [whole - own for whole, own in zip(shape, part.mask.shape[1:], strict=True)][::-1]

    def pad(value: Tensor | None, *, before: int = 1) -> Tensor | None:
        """The tokens follow the first dimensions; those behind them are left as they are."""
        if value is None:
            return None
        inner = value.dim() - before - len(shape)
        return nn.functional.pad(value, (0, 0) * inner + tuple(behind))

    fields = ("probs", "expected_entropy", "energy", "mask", "mean", "variance", "labels")
    return replace(part, **{field: pad(getattr(part, field)) for field in fields}, draws=pad(part.draws, before=2))


def counted(likelihood: dist.TorchDistribution) -> Tensor | None:
    """The mask ``(batch, tokens)`` of what a likelihood of batch shape ``(S, batch)`` counts; None for everything."""
    masked = masked_part(likelihood)
    if masked is None:
        return None
    mask = torch.as_tensor(mask_of(masked), device=device_of(masked))
    return mask.expand(masked.batch_shape)[0]


def _behind(mask: Tensor, value: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (value.dim() - mask.dim()))


def _at_tokens(labels: Tensor, mask: Tensor, event_shape: torch.Size) -> Tensor:
    """The labels ``(batch, tokens, ...)``, 0 at padding."""
    expected = (len(mask), *event_shape)
    if labels.shape != expected:
        raise ValueError(f"the likelihood takes labels of shape {expected}, one per token, got {tuple(labels.shape)}")
    return labels.where(_behind(mask, labels).to(labels.device), 0)
