"""Aggregation of a likelihood over S posterior samples into a :class:`Prediction`, and of batches into one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyro.distributions as dist
import torch
from torch import Tensor

from probattn.functional import errors
from probattn.inference.prediction.class_labels import check_shape
from probattn.inference.prediction.mixture import innermost, label_mask, moments, unwrap
from probattn.inference.prediction.result import PER_EXAMPLE, Prediction, entropy, pad_to_shape


def summarise(
    likelihood: dist.TorchDistribution,
    labels: Tensor | None,
    device: torch.device,
    *,
    num_samples: int,
    keep_draws: bool,
) -> Prediction:
    """Average the likelihood of a batch over posterior samples.

    Args:
        likelihood: of batch shape ``(S, batch)``, or ``(batch,)`` if nothing was sampled.
        labels: labels that came with the inputs, or None.
        device: device of the result, except its components.
        num_samples: S.
        keep_draws: keep the probabilities of each sample.

    Raises:
        ValueError: NaN or Inf in the outputs; labels whose shape differs from the likelihood's.
    """
    deterministic = len(likelihood.batch_shape) == 1
    if deterministic:
        likelihood = likelihood.expand((num_samples, *likelihood.batch_shape))
    mask, base = label_mask(likelihood), unwrap(likelihood)
    is_class = isinstance(innermost(base), torch.distributions.Categorical)
    if is_class:
        if not likelihood.event_shape:
            mask = None
        elif mask is None:
            mask = torch.ones_like(base.probs[0, ..., 0], dtype=torch.bool)
        fields = _class_fields(base, mask, deterministic=deterministic, keep_draws=keep_draws)
        components = () if mask is None else (likelihood,)
    else:
        fields, components = _moments(likelihood, mask), (likelihood,)
    if labels is not None:
        check_shape(labels, (likelihood.batch_shape[-1], *likelihood.event_shape))
        labels = labels if mask is None else labels.where(_append_dims(mask, labels).to(labels.device), 0)
    fields = {name: value.to(device) for name, value in (fields | {"mask": mask}).items() if value is not None}
    return Prediction(
        **fields,
        ordered=getattr(base, "is_ordered", False),
        labels=labels,
        components=components,
        num_samples=num_samples,
    )


def _class_fields(
    base: dist.TorchDistribution, mask: Tensor | None, *, deterministic: bool, keep_draws: bool
) -> dict[str, Tensor | None]:
    probs, energy = base.probs, getattr(base, "energy", None)
    message = "the network's outputs are NaN or Inf: its weights are broken, load an earlier checkpoint"
    errors.refuse(~probs.isfinite(), lambda _: ValueError(message))
    if mask is not None:
        probs = probs.where(mask.unsqueeze(-1), 0.0)
        energy = None if energy is None else energy.where(mask, 0.0)
    draws = probs if keep_draws else None
    if deterministic:  # the mean of S copies would differ in the last bit, and yield mutual information
        probs = probs[:1]
    energy = None if energy is None else energy[: len(probs)].mean(0)
    return {"probs": probs.mean(0), "expected_entropy": entropy(probs).mean(0), "energy": energy, "draws": draws}


def _moments(likelihood: dist.TorchDistribution, mask: Tensor | None) -> dict[str, Tensor]:
    means, variances = moments(likelihood)
    mean, variance = means.mean(0), variances.mean(0) + means.var(0, correction=0)
    if mask is not None:
        mean, variance = (value.where(_append_dims(mask, value), 0.0) for value in (mean, variance))
    return {"mean": mean, "variance": variance}


def join(parts: Sequence[Prediction]) -> Prediction:
    """Concatenate predictions along the examples, with tokens padded to the longest example.

    Raises:
        ValueError: labels, or another field, in some of them only; selected examples.
    """
    if any(part.rows is not None for part in parts):
        raise ValueError("selected examples cannot be joined: join the whole predictions, and select then")
    if parts[0].mask is not None:
        shape = longest(part.mask for part in parts)
        parts = [_pad(part, shape) for part in parts]

    def cat(field: str, dim: int = 0) -> Tensor | None:
        values = [value for part in parts if (value := getattr(part, field)) is not None]
        if values and len(values) < len(parts):
            raise ValueError(f"some batches have {field} and others have none: give them to all, or to none")
        return torch.cat(values, dim) if values else None

    return Prediction(
        **{field: cat(field) for field in PER_EXAMPLE},
        draws=cat("draws", 1),
        ordered=parts[0].ordered,
        num_samples=parts[0].num_samples,
        components=tuple(component for part in parts for component in part.components),
    )


def longest(values: Iterable[Tensor]) -> list[int]:
    """Return the largest size of each dimension after the first."""
    return [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]


def _pad(part: Prediction, shape: Sequence[int]) -> Prediction:
    """Pad the token dimensions with 0 (no token) to ``shape``."""

    def pad(value: Tensor | None, *, leading: int = 1) -> Tensor | None:
        """Pad the dimensions after the ``leading`` ones; those after the tokens stay as they are."""
        return None if value is None else pad_to_shape(value, [*shape, *value.shape[leading + len(shape) :]])

    fields = {field: pad(getattr(part, field)) for field in PER_EXAMPLE}
    return replace(part, **fields, draws=pad(part.draws, leading=2))


def _append_dims(mask: Tensor, value: Tensor) -> Tensor:
    """Append dimensions of size 1 to the mask until it broadcasts against the value."""
    return mask.reshape(mask.shape + (1,) * (value.dim() - mask.dim()))
