"""Attention layers by name, and checks of the argument ``attention`` of networks."""

import inspect
from collections.abc import Sequence

from torch import nn

from probattn.attention.base import LayerFactory
from probattn.attention.cgp import CGPAttention
from probattn.attention.kep_svgp import KEPSVGPAttention
from probattn.attention.kernel import KernelAttention
from probattn.attention.sgpa import SGPAttention
from probattn.attention.softmax import SoftmaxAttention
from probattn.attention.sparse_cgp import SparseCGPAttention

MAX_RANK = 10
"""Rank of KEP-SVGP in its papers, which is that of its layers by name if their heads have as many dimensions."""


def kep_svgp(dim: int, heads: int, *, bias: bool = False) -> KEPSVGPAttention:
    """Return a KEP-SVGP layer with the rank of the papers, or that of its heads if they are smaller."""
    return KEPSVGPAttention(dim, heads, rank=min(MAX_RANK, dim // heads), bias=bias)


LAYERS: dict[str, LayerFactory] = {
    "softmax": SoftmaxAttention,
    "kep-svgp": kep_svgp,
    "sgpa": SGPAttention,
    "cgp": CGPAttention,
    "sparse-cgp": SparseCGPAttention,
    "kernel": KernelAttention,
}
"""Layers with their default options by the names that the command uses."""


def layer_factory(attention: str | LayerFactory) -> LayerFactory:
    """Return a factory ``(dim, heads) -> layer``.

    Args:
        attention: a name of :data:`LAYERS`, a layer's class, or a factory such as
            ``SGPAttention.partial(inducing=16)``.

    Raises:
        ValueError: an unknown name.
        TypeError: a layer, where a factory is needed; a class that needs further options; another object.
    """
    if isinstance(attention, str):
        if attention not in LAYERS:
            raise ValueError(f"attention {attention!r} is unknown; choose one of {', '.join(LAYERS)}, or give a class")
        return LAYERS[attention]
    if isinstance(attention, nn.Module):
        name = type(attention).__name__
        raise TypeError(
            f"attention takes a factory (dim, heads) -> layer, which is called for each block, and got a layer: pass "
            f"{name} or {name}.partial(...) in place of {name}(...)"
        )
    if not callable(attention):
        raise TypeError(
            f"attention takes a name ({', '.join(LAYERS)}), a layer's class, or a factory (dim, heads) -> layer, got "
            f"{attention!r}"
        )
    if isinstance(attention, type):
        _check_options(attention)
    return attention


def _check_options(layer: type) -> None:
    """Check that a layer's class needs no options besides ``dim`` and ``heads``."""
    parameters = inspect.signature(layer).parameters.values()
    needed = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    if needed:
        options = ", ".join(f"{name}=…" for name in needed)
        raise TypeError(f"{layer.__name__} needs {', '.join(needed)}: pass {layer.__name__}.partial({options})")


def layer_factories(attention: str | LayerFactory | Sequence[str | LayerFactory], *, depth: int) -> list[LayerFactory]:
    """Return the factory of each of ``depth`` blocks.

    Raises:
        ValueError: a number of factories other than ``depth``; an unknown name.
        TypeError: as for :func:`layer_factory`.
    """
    is_sequence = isinstance(attention, Sequence) and not isinstance(attention, str)
    factories = [layer_factory(each) for each in attention] if is_sequence else [layer_factory(attention)] * depth
    if len(factories) != depth:
        raise ValueError(f"{len(factories)} attention factories for {depth} blocks; give one, or one per block")
    return factories
