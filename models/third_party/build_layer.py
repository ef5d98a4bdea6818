"""Attention layers initialised from the weights of another library's layer, and the check that these are attention."""

import copy
import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.base import LayerFactory, ProbabilisticAttention
from probattn.attention.mean import SoftmaxMean
from probattn.attention.softmax import SoftmaxAttention
from probattn.models.third_party.attention_kinds import AttentionParts, read_attention

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
    layer = factory(old.query[0].shape[1], old.heads, **_options(factory, old))
    if not isinstance(layer, ProbabilisticAttention):
        raise ValueError(f"attention must build attention layers of probattn, got {type(layer).__name__}")
    layer.to(old.query[0])
    for name in JOINT_MAPS:
        if isinstance(joint := getattr(layer, name, None), nn.Linear):
            gains = {"query": layer.gain, "key": layer.gain, "value": 1.0}
            _copy(joint, *(tuple(gains[part] * x for x in getattr(old, part)) for part in name.split("_")))
            if name.endswith("value"):
                _copy(layer.out, old.out)
    if isinstance(getattr(layer, "mean", None), SoftmaxMean):
        _copy(layer.mean.value, old.value)
        _copy(layer.mean.out, old.out)
    return layer


@torch.no_grad()
def check_softmax_attention(module: nn.Module) -> int | None:
    """Compare a module with softmax attention that has its weights, on a few tokens in evaluation mode.

    This shows what its class does not: norms of queries and keys, position biases, other scales, a causal mask. The
    check runs on a copy with random weights, since zeros, as output maps often begin with, would hide them.

    Returns:
        Length of the tuple that the layer to be replaced returns; None if it returns a tensor.

    Raises:
        ValueError: a different output, or a module that cannot be called on tokens alone.
    """
    probe, generator = copy.deepcopy(module).eval(), torch.Generator().manual_seed(0)
    for parameter in probe.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1:].numel() ** 0.5)
    old = read_attention(probe)
    weight, inner = old.query[0], probe.get_submodule(old.layout.inner)
    x = (torch.randn(2, 5, weight.shape[1], generator=generator).to(weight),)
    x *= 3 if isinstance(module, nn.MultiheadAttention) else 1
    output = inner(*x)
    actual = output[0] if isinstance(output, tuple) else output
    if old.layout.inner:
        actual = nn.functional.linear(actual, *old.out)
    expected = old.layout.adapter(build_layer(SoftmaxAttention, old), inner).eval()(*x)
    eps = max(torch.finfo(dtype).eps for dtype in (weight.dtype, torch.float32))  # some compute scores in float32
    if actual.shape != expected.shape or (actual - expected).abs().max() > eps**0.5 * expected.abs().max():
        raise ValueError("its output is not the softmax attention of its linear maps with scale 1/√(head width)")
    return len(output) if isinstance(output, tuple) else None


def _options(factory: LayerFactory, old: AttentionParts) -> dict[str, Any]:
    """Return ``bias`` and ``dropout`` of the old layer where the factory takes and has not set them."""
    fixed = factory.keywords if isinstance(factory, functools.partial) else {}
    options = {"bias": old.biased, "dropout": old.dropout}
    return {name: options[name] for name in options.keys() & (inspect.signature(factory).parameters.keys() - fixed)}


@torch.no_grad()
def _copy(linear: nn.Linear, *parts: tuple[Tensor, ...]) -> None:
    """Copy linear maps into the rows of one."""
    weights, biases = zip(*parts, strict=True)
    linear.weight.copy_(torch.cat(weights))
    if linear.bias is not None:
        linear.bias.copy_(torch.cat(biases))
