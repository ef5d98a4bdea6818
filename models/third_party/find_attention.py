"""Recognition of other libraries' attention layers by their structure, and extraction of their weights."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from probattn.models.third_party.adapters import Adapter, FusedQKVAdapter, MultiheadAttentionAdapter, SeparateQKVAdapter
from probattn.torch_compat import is_dropout

DROPOUT_ATTRIBUTES = ("attention_dropout", "dropout_prob", "attn_drop", "dropout")
"""Attributes that hold the dropout of attention probabilities, as a module or a rate."""


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
    """Iterate over the attention layers of other libraries in order of definition: path, and a function to read it."""
    for path, module in network.named_modules():
        reader = next((read for matches, read in STRUCTURES if matches(module)), None)
        if reader is not None:
            yield path, partial(_read, reader, module)


def _read(reader: Callable[[nn.Module], AttentionParts], module: nn.Module) -> AttentionParts:
    """Read an attention layer and check its widths."""
    old = reader(module)
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
    dropout = _dropout_rate(module, module.qkv, module.proj, proj_drop)
    weights = module.qkv.weight.chunk(3)
    biases = (None,) * 3 if module.qkv.bias is None else module.qkv.bias.chunk(3)
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
    heads = module.num_attention_heads if hasattr(module, "num_attention_heads") else module.num_heads
    out = module.o_proj if _has_linear(module, "o_proj") else module.out_proj
    linears = (module.q_proj, module.k_proj, module.v_proj, out)
    return AttentionParts(heads, *map(_linear_map, linears), _dropout_rate(module, *linears), SeparateQKVAdapter)


def _is_separate(module: nn.Module) -> bool:
    out = _has_linear(module, "o_proj") or _has_linear(module, "out_proj")
    heads = hasattr(module, "num_attention_heads") or hasattr(module, "num_heads")
    return _has_linear(module, "q_proj", "k_proj", "v_proj") and out and heads


def _is_fused(module: nn.Module) -> bool:
    return _has_linear(module, "qkv", "proj") and hasattr(module, "num_heads")


STRUCTURES = (
    (lambda module: isinstance(module, nn.MultiheadAttention), _read_multihead),
    (_is_fused, _read_fused),
    (lambda module: _inner_name(module) is not None, _read_nested),
    (_is_separate, _read_separate),
)
"""Supported structures: a predicate of modules, and a function that reads their parts."""


def _inner_name(module: nn.Module) -> str | None:
    """Return the name of the child with query, key and value of a module whose output map is ``output.dense``."""
    children = dict(module.named_children())
    if "output" not in children or not _has_linear(children["output"], "dense"):
        return None
    names = ("self", "attention")
    return next((n for n in names if n in children and _has_linear(children[n], "query", "key", "value")), None)


def _has_linear(module: nn.Module, *names: str) -> bool:
    children = dict(module.named_children())
    return all(isinstance(children.get(name), nn.Linear) for name in names)


def _linear_map(linear: nn.Linear) -> LinearMap:
    return LinearMap(linear.weight, linear.bias)


def _dropout_rate(module: nn.Module, *known: nn.Module) -> float:
    """Return the dropout rate of attention probabilities.

    Raises:
        ValueError: flags, children or parameters that plain softmax attention does not have.
    """
    dropout = next((getattr(module, name) for name in DROPOUT_ATTRIBUTES if hasattr(module, name)), 0.0)
    for flag in ("is_decoder", "is_causal", "is_cross_attention"):
        if getattr(module, flag, False) is True:
            raise ValueError(f"{flag} is set: decoders and cross-attention have no counterpart")
    for name, child in module.named_children():
        dropped = is_dropout(child) and (child is dropout or child.p == 0)
        if not (dropped or isinstance(child, nn.Identity) or any(child is each for each in known)):
            raise ValueError(f"its {name} ({type(child).__name__}) has no counterpart")
    for name, _ in module.named_parameters(recurse=False):
        raise ValueError(f"its parameter {name} has no counterpart")
    rate = getattr(dropout, "p", dropout)
    return float(rate) if isinstance(rate, (int, float)) else 0.0
