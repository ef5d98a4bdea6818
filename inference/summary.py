"""What is kept of a likelihood under S draws."""

from collections.abc import Sequence
from dataclasses import replace

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.functional import errors
from probattn.inference.predicted import Prediction, entropy


def summarise(
    likelihood: dist.TorchDistribution,
    labels: Tensor | None,
    home: torch.device,
    *,
    num_draws: int,
    keep_draws: bool,
) -> Prediction:
    """The prediction of some examples.

    Args:
        likelihood: of batch shape ``(S, batch)``, or ``(batch,)`` where nothing was drawn.
        labels: the labels that came with the inputs, or None.
        home: the device of the result, but for its components.
        num_draws: S.
        keep_draws: whether to keep the probabilities of each draw.

    Raises:
        ValueError: outputs that are NaN or Inf; labels of another shape than the likelihood's.
    """
    deterministic = len(likelihood.batch_shape) == 1
    if deterministic:
        likelihood = likelihood.expand((num_draws, *likelihood.batch_shape))
    categorical, counted = _categorical(likelihood)
    if categorical is None:
        means, variances = likelihood.mean, likelihood.variance
        variance = variances.mean(0) + means.var(0, correction=0)
        return Prediction(
            mean=means.mean(0).to(home), variance=variance.to(home), labels=labels, components=(likelihood,)
        )
    probs, energy = categorical.probs, getattr(categorical, "energy", None)
    why = "the network's outputs are NaN or Inf: its weights are broken, load a checkpoint before that"
    errors.refuse(~probs.isfinite(), lambda _: ValueError(why))
    mask = None
    if likelihood.event_shape:
        mask = torch.as_tensor(counted, device=probs.device).expand(probs.shape[:-1])[0]
        probs = probs.where(mask.unsqueeze(-1), 0.0)
        energy = None if energy is None else energy.where(mask, 0.0)
        labels = None if labels is None else _at_tokens(labels, mask)
    draws = probs.to(home) if keep_draws else None
    if deterministic:  # the mean of copies would differ from them in the last bit, and give mutual information
        probs = probs[:1]
    return Prediction(
        probs=probs.mean(0).to(home),
        expected_entropy=entropy(probs).mean(0).to(home),
        energy=None if energy is None else energy[: len(probs)].mean(0).to(home),
        draws=draws,
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
        components=tuple(component for part in parts for component in part.components),
    )


def _padded(part: Prediction, shape: Sequence[int]) -> Prediction:
    """The prediction with 0 (no token) behind its tokens, up to that many."""
    behind = [0] * (2 * len(shape))
    behind[1::2] = [whole - own for whole, own in zip(shape, part.mask.shape[1:], strict=True)][::-1]

    def pad(value: Tensor | None, *inner: int) -> Tensor | None:
        return None if value is None else nn.functional.pad(value, (*inner, *behind))

    return replace(
        part,
        **{field: pad(getattr(part, field)) for field in ("expected_entropy", "energy", "mask", "labels")},
        **{field: pad(getattr(part, field), 0, 0) for field in ("probs", "draws")},
    )


def _at_tokens(labels: Tensor, mask: Tensor) -> Tensor:
    """The labels ``(batch, tokens)``, 0 at padding."""
    if labels.shape != mask.shape:
        raise ValueError(
            f"the likelihood takes labels of shape {tuple(mask.shape)}, one per token, got {tuple(labels.shape)}"
        )
    return labels.where(mask.to(labels.device), 0)


def _categorical(
    likelihood: dist.TorchDistribution,
) -> tuple[torch.distributions.Categorical | None, Tensor | bool]:
    """The categorical distribution inside a likelihood, if it is one, and where it counts."""
    counted = True
    while isinstance(likelihood, (torch.distributions.Independent, dist.MaskedDistribution)):
        if isinstance(likelihood, dist.MaskedDistribution):
            counted = counted & likelihood._mask
        likelihood = likelihood.base_dist
    return (likelihood if isinstance(likelihood, torch.distributions.Categorical) else None), counted
