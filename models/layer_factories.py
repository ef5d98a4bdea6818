"""The attention layers by name, each with the record that ``layers.toml`` has of it."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from probattn import SoftmaxAttention
from probattn.attention.base import LayerFactory
from probattn.models.layer_records import LAYERS, LayerRecord

Attention = str | LayerFactory | Sequence[str | LayerFactory]
"""Argument ``attention`` of networks: a name, a class or a factory, for every block, or a sequence
of one per block."""


def layer_factory(attention: str | LayerFactory, **network: Any) -> LayerFactory:
    """Return a factory ``(dim, heads) -> layer``.

    Args:
        attention: a name of :data:`LAYERS`, a layer's class, or a factory such as
            ``probattn.SGPAttention.partial(inducing=16)``.
        network: of a name, arguments of :meth:`LayerRecord.factory`.

    Raises:
        ValueError: an unknown name.
        TypeError: a layer, where a factory is needed.
    """
    if isinstance(attention, str):
        return _record(attention).factory(**network)
    if isinstance(attention, nn.Module):
        raise TypeError(
            "attention takes a name, a class or a factory (dim, heads) -> layer, not a layer: "
            f"{attention}"
        )
    return attention


def layer_factories(attention: Attention, *, depth: int, **network: Any) -> list[LayerFactory]:
    """Return the factory of each of ``depth`` blocks; one name stands for the blocks of its record.

    Args:
        attention: as for networks.
        depth: number of blocks.
        network: as for :func:`layer_factory`.

    Raises:
        ValueError: a number of factories other than ``depth``; an unknown name.
    """
    if isinstance(attention, str):
        attention = last(_record(attention).last or depth, attention, of=depth)
    layers = attention if isinstance(attention, Sequence) else [attention] * depth
    if len(layers) != depth:
        raise ValueError(
            f"{len(layers)} attention factories for {depth} blocks; give one, or one per block"
        )
    return [layer_factory(layer, **network) for layer in layers]


def last(
    number: int,
    attention: str | LayerFactory,
    *,
    of: int,
    rest: str | LayerFactory = SoftmaxAttention,
) -> list[str | LayerFactory]:
    """Return one layer per block: ``attention`` for the last ``number`` of ``of`` blocks, ``rest``
    for the others.

    Raises:
        ValueError: a number outside 0..of.
    """
    if not 0 <= number <= of:
        raise ValueError(f"cannot replace the last {number} of {of} blocks")
    return [rest] * (of - number) + [attention] * number


def _record(name: str) -> LayerRecord:
    if name not in LAYERS:
        raise ValueError(
            f"attention {name!r} is unknown; choose one of {', '.join(LAYERS)}, or give a class"
        )
    return LAYERS[name]
