"""Attention layers by name, and checks of the argument ``attention`` of networks."""

from collections.abc import Sequence

from torch import nn

import probattn
from probattn.attention.base import LayerFactory

Attention = str | LayerFactory | Sequence[str | LayerFactory]
"""Argument ``attention`` of networks: a name, a class or a factory, for every block, or a sequence
of one per block."""
MAX_RANK = 10
"""Rank of KEP-SVGP in its papers, which is that of its layers by name if their heads have as many
dimensions."""


def kep_svgp(dim: int, heads: int, *, bias: bool = False) -> probattn.KEPSVGPAttention:
    """Return a KEP-SVGP layer with the rank of the papers, or that of its heads if they are
    smaller."""
    return probattn.KEPSVGPAttention(dim, heads, rank=min(MAX_RANK, dim // heads), bias=bias)


LAYERS: dict[str, LayerFactory] = {
    "softmax": probattn.SoftmaxAttention,
    "kep-svgp": kep_svgp,
    "sgpa": probattn.SGPAttention,
    "cgp": probattn.CGPAttention,
    "sparse-cgp": probattn.SparseCGPAttention,
    "kernel": probattn.KernelAttention,
    "anchored": probattn.AnchoredAttention,
    "rff-gpa": probattn.RFFGPAttention,
    "rff-cgp": probattn.RFFCGPAttention,
}
"""Layers with their default options by the names that the command uses."""


def layer_factory(attention: str | LayerFactory) -> LayerFactory:
    """Return a factory ``(dim, heads) -> layer``.

    Args:
        attention: a name of :data:`LAYERS`, a layer's class, or a factory such as
            ``probattn.SGPAttention.partial(inducing=16)``.

    Raises:
        ValueError: an unknown name.
        TypeError: a layer, where a factory is needed.
    """
    if isinstance(attention, str):
        if attention not in LAYERS:
            raise ValueError(
                f"attention {attention!r} is unknown; choose one of {', '.join(LAYERS)}, or give a "
                "class"
            )
        return LAYERS[attention]
    if isinstance(attention, nn.Module):
        raise TypeError(
            "attention takes a name, a class or a factory (dim, heads) -> layer, not a layer: "
            f"{attention}"
        )
    return attention


def layer_factories(attention: Attention, *, depth: int) -> list[LayerFactory]:
    """Return the factory of each of ``depth`` blocks.

    Raises:
        ValueError: a number of factories other than ``depth``; an unknown name.
    """
    layers = (
        [attention] * depth
        if isinstance(attention, str) or not isinstance(attention, Sequence)
        else attention
    )
    factories = [layer_factory(layer) for layer in layers]
    if len(factories) != depth:
        raise ValueError(
            f"{len(factories)} attention factories for {depth} blocks; give one, or one per block"
        )
    return factories
