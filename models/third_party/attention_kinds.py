"""Table of the attention layers of other libraries that can be replaced, with the places of their
weights."""

import re
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probattn import ProbabilisticAttention
from probattn.models.third_party.adapters import (
    Adapter,
    ClassAttentionAdapter,
    MultiheadAttentionAdapter,
)
from probattn.sites import join


class Layout(NamedTuple):
    """Names of the parts of an attention layer.

    Attributes:
        adapter: replacement for it.
        maps: prefixes of ``weight`` and ``bias`` of query, key, value and output map, or of a joint
            and the output map.
        heads: number of heads.
        dropout: rate or module of the dropout of attention probabilities.
        inner: submodule that is replaced, outside which the output map is; empty if it is the layer
            itself.
    """

    adapter: type[Adapter]
    maps: str
    heads: str
    dropout: str
    inner: str = ""


def _nested(inner: str, dropout: str) -> Layout:
    maps = f"{inner}.query. {inner}.key. {inner}.value. output.dense."
    return Layout(Adapter, maps, f"{inner}.num_attention_heads", f"{inner}.{dropout}", inner)


LAYOUTS = (
    Layout(MultiheadAttentionAdapter, "in_proj_ out_proj.", "num_heads", "dropout"),
    Layout(Adapter, "qkv. proj.", "num_heads", "attn_drop"),
    Layout(ClassAttentionAdapter, "q. k. v. proj.", "num_heads", "attn_drop"),
    _nested("self", "dropout"),
    _nested("attention", "dropout_prob"),
    Layout(Adapter, "q_lin. k_lin. v_lin. out_lin.", "n_heads", "dropout"),
    Layout(Adapter, "q_proj. k_proj. v_proj. out_proj.", "num_heads", "dropout"),
    Layout(Adapter, "q_proj. k_proj. v_proj. o_proj.", "num_attention_heads", "attention_dropout"),
)
"""Layouts of all kinds; some kinds change theirs between versions of their library. The first that
fits is used."""
KINDS = {
    "torch": "MultiheadAttention",
    "timm": "Attention EvaAttention ClassAttn",
    "transformers": "BertAttention RobertaAttention XLMRobertaAttention CamembertAttention "
    "ElectraAttention DistilBertSelfAttention ViTAttention DeiTAttention Dinov2Attention "
    "BeitAttention YolosAttention VideoMAEAttention CLIPAttention SiglipAttention "
    "Wav2Vec2Attention",
}
"""Names of classes by library; classes derived from them count, too."""
POOLING = ("AttentionPoolLatent", "SiglipMultiheadAttentionPoolingHead")
"""Heads that attend by a learned query, which are no attention layers of the network."""


class AttentionParts(NamedTuple):
    """Layout, heads, dropout and linear maps of an attention layer, and whether its inputs' maps
    have biases.

    A linear map is its weight with its bias as the last column, 0 if it has none.
    """

    layout: Layout
    heads: int
    dropout: float
    biased: bool
    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor


def find_attention(module: nn.Module, path: str = "") -> Iterator[tuple[str, bool]]:
    """Iterate over the innermost attention layers, by their kinds or names: path, and whether the
    kind is known."""
    replaced = (Adapter, ProbabilisticAttention)
    if _is_known(module) and not any(
        isinstance(submodule, replaced) for submodule in module.modules()
    ):
        yield path, True
    elif not isinstance(module, replaced) and type(module).__name__ not in POOLING:
        inside = [
            layer
            for name, child in module.named_children()
            for layer in find_attention(child, join(path, name))
        ]
        is_attention = re.search("attention|attn|xca", type(module).__name__, re.I)
        yield from inside or ([(path, False)] if is_attention else [])


def _is_known(module: nn.Module) -> bool:
    bases = ((base.__module__.partition(".")[0], base.__name__) for base in type(module).__mro__)
    return any(name in KINDS.get(library, "").split() for library, name in bases)


def read_attention(module: nn.Module) -> AttentionParts:
    """Return the parts of an attention layer of a known kind.

    Raises:
        ValueError: they are not where its kind has them.
    """
    for layout in LAYOUTS:
        with suppress(AttributeError, TypeError):
            maps = [
                attrgetter(f"{name}weight", f"{name}bias")(module) for name in layout.maps.split()
            ]
            if (
                getattr(module, "q_bias", None) is not None
            ):  # of timm's EVA, which has none for keys
                weight, query, value = attrgetter("qkv.weight", "q_bias", "v_bias")(module)
                maps[0] = weight, torch.cat([query, 0 * query, value])
            heads, dropout = attrgetter(layout.heads, layout.dropout)(module)
            biased = any(bias is not None for _, bias in maps[:-1])
            *inputs, out = (_with_bias(*linear) for linear in maps)
            query, key, value = torch.cat(inputs).chunk(3)
            return AttentionParts(
                layout, heads, float(getattr(dropout, "p", dropout)), biased, query, key, value, out
            )
    raise ValueError("its query, key, value and output maps are not where its kind has them")


def _with_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return torch.cat([weight, bias.unsqueeze(1)], 1)
