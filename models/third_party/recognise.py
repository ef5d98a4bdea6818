"""Attention layers of other libraries, recognised by their structure, and what is read off them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from probattn.models.third_party.adapters import Adapter, JointAdapter, MultiheadAdapter, SeparateAdapter
from probattn.torch_compat import is_dropout

DROPOUTS = ("attention_dropout", "dropout_prob", "attn_drop", "dropout")
"""Where modules keep the dropout of attention probabilities, as a module or a rate."""


class Affine(NamedTuple):
    """A linear map."""

    weight: Tensor
    bias: Tensor | None


class Old(NamedTuple):
    """An attention layer as far as another one can start from it.

    ``inner`` is the path, from the module that was recognised, of what the adapter replaces; ``emptied`` that of a
    linear map which moves into the new layer.
    """

    heads: int
    query: Affine
    key: Affine
    value: Affine
    out: Affine
    dropout: float
    adapt: Callable[..., Adapter]
    inner: str = ""
    emptied: str = ""


class Kind(NamedTuple):
    """A structure: whether a module has it, and what is read off one that has."""

    matches: Callable[[nn.Module], bool]
    read: Callable[[nn.Module], Old]


def find(network: nn.Module) -> Iterator[tuple[str, Callable[[], Old]]]:
    """Path of each attention layer in the order of definition, and what reads it; layers of ours are none."""
    for path, module in network.named_modules():
        kind = next((kind for kind in KINDS if kind.matches(module)), None)
        if kind is not None:
            yield path, partial(_read, kind, module)


def _read(kind: Kind, module: nn.Module) -> Old:
    old = kind.read(module)
    dim = old.query.weight.shape[1]
    shapes = {tuple(part.weight.shape) for part in (old.query, old.key, old.value, old.out)}
    if shapes != {(dim, dim)} or dim % old.heads:
        raise ValueError(
            f"its maps have shapes {sorted(shapes)}: all widths must be one, a multiple of {old.heads} heads"
        )
    return old


def _read_multihead(module: nn.MultiheadAttention) -> Old:
    if module.in_proj_weight is None:
        raise ValueError(f"kdim={module.kdim} and vdim={module.vdim} differ from embed_dim={module.embed_dim}")
    if module.bias_k is not None or module.add_zero_attn:
        raise ValueError("add_bias_kv and add_zero_attn add tokens that are none")
    weights = module.in_proj_weight.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    adapt = partial(MultiheadAdapter, batch_first=module.batch_first)
    out = _affine(module.out_proj)
    return Old(module.num_heads, *map(Affine, weights, biases), out, module.dropout, adapt)


def _read_joint(module: nn.Module) -> Old:
    adapt = partial(JointAdapter, after=getattr(module, "proj_drop", nn.Identity()))
    dropout = _rate(module, module.qkv, module.proj, adapt.keywords["after"])
    weights = module.qkv.weight.chunk(3)
    biases = (None,) * 3 if module.qkv.bias is None else module.qkv.bias.chunk(3)
    return Old(module.num_heads, *map(Affine, weights, biases), _affine(module.proj), dropout, adapt)


def _read_split(module: nn.Module) -> Old:
    name = _inner(module)
    inner, dense = getattr(module, name), module.output.dense
    maps = (inner.query, inner.key, inner.value)
    dropout = _rate(inner, *maps)
    parts = map(_affine, (*maps, dense))
    return Old(inner.num_attention_heads, *parts, dropout, SeparateAdapter, inner=name, emptied="output.dense")


def _read_separate(module: nn.Module) -> Old:
    heads = module.num_attention_heads if hasattr(module, "num_attention_heads") else module.num_heads
    maps = (module.q_proj, module.k_proj, module.v_proj, module.o_proj if _has(module, "o_proj") else module.out_proj)
    return Old(heads, *map(_affine, maps), _rate(module, *maps), SeparateAdapter)


def _is_separate(module: nn.Module) -> bool:
    maps = _has(module, "q_proj", "k_proj", "v_proj") and (_has(module, "o_proj") or _has(module, "out_proj"))
    return maps and (hasattr(module, "num_attention_heads") or hasattr(module, "num_heads"))


def _is_joint(module: nn.Module) -> bool:
    return _has(module, "qkv", "proj") and hasattr(module, "num_heads")


KINDS = (
    Kind(lambda module: isinstance(module, nn.MultiheadAttention), _read_multihead),
    Kind(_is_joint, _read_joint),
    Kind(lambda module: _inner(module) is not None, _read_split),
    Kind(_is_separate, _read_separate),
)


def _inner(module: nn.Module) -> str | None:
    """Where an attention module has query, key and value, if its ``output.dense`` is their output map."""
    children = dict(module.named_children())
    if "output" not in children or not _has(children["output"], "dense"):
        return None
    names = ("self", "attention")
    return next((n for n in names if n in children and _has(children[n], "query", "key", "value")), None)


def _has(module: nn.Module, *names: str) -> bool:
    children = dict(module.named_children())
    return all(isinstance(children.get(name), nn.Linear) for name in names)


def _affine(linear: nn.Linear) -> Affine:
    return Affine(linear.weight, linear.bias)


def _rate(module: nn.Module, *known: nn.Module) -> float:
    """At which rate attention drops probabilities, if it is nothing but what is known of it around a softmax."""
    dropout = next((getattr(module, name) for name in DROPOUTS if hasattr(module, name)), 0.0)
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
