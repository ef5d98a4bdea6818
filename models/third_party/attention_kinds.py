"""Table of the attention layers of other libraries that can be replaced, with the places of their weights."""

import re
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.models.third_party import adapters
from probattn.sites import join


class Layout(NamedTuple):
    """Names of the parts of an attention layer.

    Attributes:
        adapter: replacement for it.
        maps: prefixes of ``weight`` and ``bias`` of query, key, value and output map, or of a joint and the output map.
        heads: number of heads.
        dropout: rate or module of the dropout of attention probabilities.
        inner: submodule that is replaced, outside which the output map is; empty if it is the layer itself.
    """

    adapter: type[adapters.Adapter]
    maps: str
    heads: str
    dropout: str
    inner: str = ""


def _nested(inner: str, dropout: str) -> Layout:
    maps = f"{inner}.query. {inner}.key. {inner}.value. output.dense."
    return Layout(adapters.TokenAdapter, maps, f"{inner}.num_attention_heads", f"{inner}.{dropout}", inner)


TORCH = (Layout(adapters.MultiheadAttentionAdapter, "in_proj_ out_proj.", "num_heads", "dropout"),)
TIMM = (Layout(adapters.TokenAdapter, "qkv. proj.", "num_heads", "attn_drop"),)
TIMM_CLASS = (Layout(adapters.ClassAttentionAdapter, "q. k. v. proj.", "num_heads", "attn_drop"),)
HUGGING_FACE = (
    _nested("self", "dropout"),
    _nested("attention", "dropout_prob"),
    Layout(adapters.TokenAdapter, "q_lin. k_lin. v_lin. out_lin.", "n_heads", "dropout"),
    Layout(adapters.TokenAdapter, "q_proj. k_proj. v_proj. out_proj.", "num_heads", "dropout"),
    Layout(adapters.TokenAdapter, "q_proj. k_proj. v_proj. o_proj.", "num_attention_heads", "attention_dropout"),
)
HUGGING_FACE_CLASSES = (
    "BertAttention RobertaAttention XLMRobertaAttention CamembertAttention ElectraAttention DistilBertSelfAttention "
    "ViTAttention DeiTAttention Dinov2Attention BeitAttention YolosAttention VideoMAEAttention CLIPAttention "
    "SiglipAttention Wav2Vec2Attention"
)
KINDS: dict[tuple[str, str], tuple[Layout, ...]] = {
    ("torch", "MultiheadAttention"): TORCH,
    ("timm", "Attention"): TIMM,
    ("timm", "EvaAttention"): TIMM,
    ("timm", "ClassAttn"): TIMM_CLASS,
    **{("transformers", name): HUGGING_FACE for name in HUGGING_FACE_CLASSES.split()},
}
"""Layouts by library and class; of several, which differ between versions, the first that fits is used."""
POOLING = (("timm", "AttentionPoolLatent"), ("transformers", "SiglipMultiheadAttentionPoolingHead"))
"""Heads that attend by a learned query, which are no attention layers of the network."""


LinearMap = tuple[Tensor, Tensor]
"""Weight and bias of a linear map; a missing bias is 0."""


class AttentionParts(NamedTuple):
    """Layout, heads, dropout and linear maps of an attention layer, and whether its inputs' maps have biases."""

    layout: Layout
    heads: int
    dropout: float
    biased: bool
    query: LinearMap
    key: LinearMap
    value: LinearMap
    out: LinearMap


def find_attention(module: nn.Module, path: str = "") -> Iterator[tuple[str, bool]]:
    """Iterate over the innermost attention layers, by their kinds or names: path, and whether the kind is known."""
    keys = _keys(module)
    replaced = (adapters.Adapter, ProbabilisticAttention)
    if any(key in KINDS for key in keys) and not any(isinstance(part, replaced) for part in module.modules()):
        yield path, True
    elif not isinstance(module, replaced) and keys[0] not in POOLING:
        children = module.named_children()
        inside = [layer for name, child in children for layer in find_attention(child, join(path, name))]
        is_attention = re.search("attention|attn|xca", keys[0][1], re.I)
        yield from inside or ([(path, False)] if is_attention else [])


def read_attention(module: nn.Module) -> AttentionParts:
    """Return the parts of an attention layer of a known kind.

    Raises:
        ValueError: they are not where its kind has them.
    """
    for layout in next(KINDS[key] for key in _keys(module) if key in KINDS):
        with suppress(AttributeError):
            return _read(module, layout)
    raise ValueError("its query, key, value and output maps are not where its kind has them")


def _read(module: nn.Module, layout: Layout) -> AttentionParts:
    *maps, out = (attrgetter(f"{name}weight", f"{name}bias")(module) for name in layout.maps.split())
    if len(maps) == 1:
        weight, bias = maps[0]
        if getattr(module, "q_bias", None) is not None:  # of timm's EVA, which has none for keys
            bias = torch.cat([module.q_bias, torch.zeros_like(module.q_bias), module.v_bias])
        maps = list(zip(weight.chunk(3), [None] * 3 if bias is None else bias.chunk(3), strict=True))
    heads, dropout = attrgetter(layout.heads, layout.dropout)(module)
    biased = any(bias is not None for _, bias in maps)
    filled = [(weight, weight.new_zeros(len(weight)) if bias is None else bias) for weight, bias in (*maps, out)]
    return AttentionParts(layout, heads, float(getattr(dropout, "p", dropout)), biased, *filled)


def _keys(module: nn.Module) -> list[tuple[str, str]]:
    """Return library and class of a module, followed by those of its base classes."""
    return [(base.__module__.partition(".")[0], base.__name__) for base in type(module).__mro__]
