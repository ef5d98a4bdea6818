"""New attention layers that start from old ones."""

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.base import LayerFactory, ProbabilisticAttention
from probattn.attention.softmax import SoftmaxAttention
from probattn.models.third_party.recognise import Affine, Old

MAPS = ("query_key_value", "query_value", "query_key")
"""Layers name their joint linear map by what it holds; where there is no key, W_q = W_k."""


def build(factory: LayerFactory, old: Old) -> ProbabilisticAttention:
    """A layer with the old one's query, key, value and output map as far as it has their counterpart.

    The weights of queries and keys are multiplied by the layer's ``gain``, as its initial ones are. An output map is a
    counterpart where the layer has values of its own.

    Args:
        factory: ``(dim, heads) -> layer``; where it takes ``bias`` or ``dropout`` and has not set it, it is given the
            old layer's.
        old: the old layer.

    Raises:
        ValueError: a factory of something else; old weights in half precision, which softmax attention alone takes.
    """
    dim = old.query.weight.shape[1]
    layer = factory(dim, old.heads, **_options(factory, old))
    if not isinstance(layer, ProbabilisticAttention):
        raise ValueError(
            f"attention must make attention layers of probattn, (dim, heads) -> layer, got {type(layer).__name__}; "
            "e.g. attention=KEPSVGPAttention.partial(rank=8)"
        )
    dtype = old.query.weight.dtype
    if torch.finfo(dtype).bits < 32 and not isinstance(layer, SoftmaxAttention):
        raise ValueError(
            f"{layer.label} needs float32 or better, and this network is in {dtype}: convert network.float(), and "
            'train with precision="bf16-mixed"'
        )
    layer.to(old.query.weight)
    for name in MAPS:
        if isinstance(getattr(layer, name, None), nn.Linear):
            _carry(getattr(layer, name), layer.gain, [(part, getattr(old, part)) for part in name.split("_")])
            if name.endswith("value"):
                _carry(layer.out, 1.0, [("out", old.out)])
    return layer


def _options(factory: LayerFactory, old: Old) -> dict[str, Any]:
    """What the old layer has and the factory leaves open."""
    given = factory.keywords if isinstance(factory, functools.partial) else {}
    taken = inspect.signature(factory).parameters.keys() - given.keys()
    biased = any(part.bias is not None for part in (old.query, old.key, old.value))
    options = {"bias": biased, "dropout": old.dropout}
    return {name: value for name, value in options.items() if name in taken}


@torch.no_grad()
def _carry(linear: nn.Linear, gain: float, parts: list[tuple[str, Affine]]) -> None:
    """Copies linear maps into the rows of one, times the gain for queries and keys; a missing bias is 0."""
    factors = [gain if name in ("query", "key") else 1.0 for name, _ in parts]
    linear.weight.copy_(torch.cat([factor * part.weight for factor, (_, part) in zip(factors, parts, strict=True)]))
    if linear.bias is not None:
        biases = [factor * _bias(part) for factor, (_, part) in zip(factors, parts, strict=True)]
        linear.bias.copy_(torch.cat(biases))


def _bias(part: Affine) -> Tensor:
    return part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias
