"""Attention layers initialised from the weights of another library's layer."""

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.base import LayerFactory, ProbabilisticAttention
from probattn.attention.mean import SoftmaxMean
from probattn.models.third_party.find_attention import AttentionParts, LinearMap

JOINT_MAPS = ("query_key_value", "query_value", "query_key")
"""Attributes of our layers that hold the joint linear map, named by its parts; without a key, W_q = W_k."""


def build_layer(factory: LayerFactory, old: AttentionParts) -> ProbabilisticAttention:
    """Build a layer with the query, key, value and output weights of another, where it has counterparts.

    Query and key weights are multiplied by the layer's ``gain``, as its initial ones are. The output map has a
    counterpart in layers with values, and in those whose mean is softmax attention, which is then the old layer.

    Args:
        factory: ``(dim, heads) -> layer``; a ``bias`` or ``dropout`` parameter that it leaves open is set as in the old
            layer.
        old: the old layer.

    Raises:
        ValueError: a factory that does not return a layer of this library.
    """
    dim = old.query.weight.shape[1]
    layer = factory(dim, old.heads, **_options(factory, old))
    if not isinstance(layer, ProbabilisticAttention):
        raise ValueError(
            f"attention must build attention layers of probattn, (dim, heads) -> layer, got {type(layer).__name__}; "
            "e.g. attention=KEPSVGPAttention.partial(rank=8)"
        )
    layer.to(old.query.weight)
    for name in JOINT_MAPS:
        if isinstance(getattr(layer, name, None), nn.Linear):
            _copy(getattr(layer, name), layer.gain, [(part, getattr(old, part)) for part in name.split("_")])
            if name.endswith("value"):
                _copy(layer.out, 1.0, [("out", old.out)])
    if isinstance(getattr(layer, "mean", None), SoftmaxMean):
        _copy(layer.mean.value, 1.0, [("value", old.value)])
        _copy(layer.mean.out, 1.0, [("out", old.out)])
    return layer


def _options(factory: LayerFactory, old: AttentionParts) -> dict[str, Any]:
    """Return ``bias`` and ``dropout`` of the old layer where the factory takes and has not set them."""
    fixed = factory.keywords if isinstance(factory, functools.partial) else {}
    taken = inspect.signature(factory).parameters.keys() - fixed.keys()
    biased = any(part.bias is not None for part in (old.query, old.key, old.value))
    options = {"bias": biased, "dropout": old.dropout}
    return {name: value for name, value in options.items() if name in taken}


@torch.no_grad()
def _copy(linear: nn.Linear, gain: float, parts: list[tuple[str, LinearMap]]) -> None:
    """Copy linear maps into the rows of one, times the gain for queries and keys; a missing bias is 0."""
    factors = [gain if name in ("query", "key") else 1.0 for name, _ in parts]
    linear.weight.copy_(torch.cat([factor * part.weight for factor, (_, part) in zip(factors, parts, strict=True)]))
    if linear.bias is not None:
        biases = [factor * _bias(part) for factor, (_, part) in zip(factors, parts, strict=True)]
        linear.bias.copy_(torch.cat(biases))


def _bias(part: LinearMap) -> Tensor:
    return part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias
