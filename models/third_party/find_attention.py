"""Recognition of other libraries' attention layers by their structure, and extraction of their weights."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from probattn.evaluation_mode import DROPOUTS
from probattn.models.third_party.adapters import (
    Adapter,
    ClassAttentionAdapter,
    FusedQKVAdapter,
    MultiheadAttentionAdapter,
    SeparateQKVAdapter,
)
from probattn.models.third_party.obstacles import UNSUPPORTED, find_obstacle

DROPOUT_ATTRIBUTES = ("attention_dropout", "dropout_prob", "attn_drop", "dropout")
"""Attributes that hold the dropout of attention probabilities, as a module or a rate."""
HEADS_ATTRIBUTES = ("num_attention_heads", "num_heads", "n_heads")
"""Attributes that hold the number of heads."""
SEPARATE_MAPS = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("q_lin", "k_lin", "v_lin", "out_lin"),
)
"""Names of separate linear maps for query, key, value and output."""
FUSED_BIASES = ("q_bias", "v_bias")
"""Parameters of timm's BEiT and EVA, whose joint map has a bias for queries and values only."""
POOLING_QUERIES = ("probe",)
"""Parameters that pooling heads use as queries, beside their attention layer."""


class LinearMap(NamedTuple):
    """Weight and bias of a linear map."""

    weight: Tensor
    bias: Tensor | None


class AttentionParts(NamedTuple):
    """Heads, linear maps and dropout of an attention layer, and the adapter that replaces it.

    ``inner`` is the path of the module to be replaced, relative to the recognised one; ``emptied`` is that of an output
    map outside it, which moves into the new layer.
    """

    heads: int
    query: LinearMap
    key: LinearMap
    value: LinearMap
    out: LinearMap
    dropout: float
    adapter: Callable[..., Adapter]
    inner: str = ""
    emptied: str = ""


def find_attention(network: nn.Module) -> Iterator[tuple[str, Callable[[], AttentionParts]]]:
    """Iterate over the attention layers of other libraries in order of definition: path, and a function to read it.

    Pooling heads that attend by a learned query (:data:`POOLING_QUERIES`) are left out.
    """
    for path, module in network.named_modules():
        reader = next((read for matches, read in STRUCTURES if matches(module)), None)
        if reader is not None and not _is_pooling(network, path):
            yield path, partial(_read, reader, network, path)


def _read(reader: Callable[[nn.Module], AttentionParts], network: nn.Module, path: str) -> AttentionParts:
    """Read an attention layer, after a check for features without a counterpart, and check its widths."""
    obstacle = find_obstacle(network, path)
    if obstacle is not None:
        raise ValueError(f"it has {obstacle}, {UNSUPPORTED}")
    old = reader(network.get_submodule(path))
    dim = old.query.weight.shape[1]
    shapes = {tuple(part.weight.shape) for part in (old.query, old.key, old.value, old.out)}
    if shapes != {(dim, dim)} or dim % old.heads:
        raise ValueError(
            f"its linear maps have shapes {sorted(shapes)}: widths must be equal and a multiple of {old.heads} heads"
        )
    return old


def _read_multihead(module: nn.MultiheadAttention) -> AttentionParts:
    if module.in_proj_weight is None:
        raise ValueError(f"kdim={module.kdim} and vdim={module.vdim} differ from embed_dim={module.embed_dim}")
    if module.bias_k is not None or module.add_zero_attn:
        raise ValueError("add_bias_kv and add_zero_attn add artificial tokens")
    weights = module.in_proj_weight.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    adapter = partial(MultiheadAttentionAdapter, batch_first=module.batch_first)
    out = _linear_map(module.out_proj)
    return AttentionParts(module.num_heads, *map(LinearMap, weights, biases), out, module.dropout, adapter)


def _read_fused(module: nn.Module) -> AttentionParts:
    proj_drop = getattr(module, "proj_drop", nn.Identity())
    own_biases = [getattr(module, name, None) for name in FUSED_BIASES]
    dropout = _dropout_rate(module, module.qkv, module.proj, proj_drop, *own_biases)
    weights = module.qkv.weight.chunk(3)
    biases = (None,) * 3 if module.qkv.bias is None else module.qkv.bias.chunk(3)
    if any(bias is not None for bias in own_biases):
        biases = (own_biases[0], None, own_biases[1])
    adapter = partial(FusedQKVAdapter, proj_drop=proj_drop)
    maps = map(LinearMap, weights, biases)
    return AttentionParts(module.num_heads, *maps, _linear_map(module.proj), dropout, adapter)


def _read_nested(module: nn.Module) -> AttentionParts:
    name = _inner_name(module)
    inner, dense = getattr(module, name), module.output.dense
    linears = (inner.query, inner.key, inner.value)
    dropout = _dropout_rate(inner, *linears)
    maps = map(_linear_map, (*linears, dense))
    return AttentionParts(
        inner.num_attention_heads, *maps, dropout, SeparateQKVAdapter, inner=name, emptied="output.dense"
    )


def _read_separate(module: nn.Module) -> AttentionParts:
    heads = next(getattr(module, name) for name in HEADS_ATTRIBUTES if hasattr(module, name))
    linears = tuple(getattr(module, name) for name in _separate_names(module))
    return AttentionParts(heads, *map(_linear_map, linears), _dropout_rate(module, *linears), SeparateQKVAdapter)


def _read_class_attention(module: nn.Module) -> AttentionParts:
    linears, proj_drop = (module.q, module.k, module.v, module.proj), module.proj_drop
    dropout = _dropout_rate(module, *linears, proj_drop)
    adapter = partial(ClassAttentionAdapter, proj_drop=proj_drop)
    return AttentionParts(module.num_heads, *map(_linear_map, linears), dropout, adapter)


def _is_class_attention(module: nn.Module) -> bool:
    """Return True for timm's class attention."""
    return type(module).__name__ == "ClassAttn" and _has_linear(module, "q", "k", "v", "proj")


def _is_separate(module: nn.Module) -> bool:
    return _separate_names(module) is not None and any(hasattr(module, name) for name in HEADS_ATTRIBUTES)


def _separate_names(module: nn.Module) -> tuple[str, ...] | None:
    """Return the names of the children that are query, key, value and output map."""
    return next((names for names in SEPARATE_MAPS if _has_linear(module, *names)), None)


def _is_fused(module: nn.Module) -> bool:
    return _has_linear(module, "qkv", "proj") and hasattr(module, "num_heads")


STRUCTURES = (
    (lambda module: isinstance(module, nn.MultiheadAttention), _read_multihead),
    (_is_fused, _read_fused),
    (lambda module: _inner_name(module) is not None, _read_nested),
    (_is_separate, _read_separate),
    (_is_class_attention, _read_class_attention),
)
"""Supported structures: a predicate of modules, and a function that reads their parts."""


def _inner_name(module: nn.Module) -> str | None:
    """Return the name of the child with query, key and value of a module whose output map is ``output.dense``."""
    children = dict(module.named_children())
    if "output" not in children or not _has_linear(children["output"], "dense"):
        return None
    names = ("self", "attention")
    return next((n for n in names if n in children and _has_linear(children[n], "query", "key", "value")), None)


def _is_pooling(network: nn.Module, path: str) -> bool:
    parent = network.get_submodule(path.rpartition(".")[0])
    return any(isinstance(getattr(parent, name, None), nn.Parameter) for name in POOLING_QUERIES)


def _has_linear(module: nn.Module, *names: str) -> bool:
    children = dict(module.named_children())
    return all(isinstance(children.get(name), nn.Linear) for name in names)


def _linear_map(linear: nn.Linear) -> LinearMap:
    return LinearMap(linear.weight, linear.bias)


def _dropout_rate(module: nn.Module, *known: nn.Module | Tensor | None) -> float:
    """Return the dropout rate of attention probabilities.

    Raises:
        ValueError: children or parameters that plain softmax attention does not have.
    """
    dropout = next((getattr(module, name) for name in DROPOUT_ATTRIBUTES if hasattr(module, name)), 0.0)
    rate = getattr(dropout, "p", dropout)
    for name, child in module.named_children():
        twin = rate is dropout and name in DROPOUT_ATTRIBUTES  # of a rate, as in the BERT of transformers 4
        dropped = isinstance(child, DROPOUTS) and (child is dropout or child.p == 0 or (twin and child.p == rate))
        if not (dropped or isinstance(child, nn.Identity) or any(child is each for each in known)):
            raise ValueError(f"its {name} ({type(child).__name__}) has no counterpart")
    for name, parameter in module.named_parameters(recurse=False):
        if not any(parameter is each for each in known):
            raise ValueError(f"its parameter {name} has no counterpart")
    return float(rate) if isinstance(rate, (int, float)) else 0.0
