"""The attention layers by name, each with the record that ``layers.toml`` has of it."""

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any, NamedTuple

from torch import nn

from probattn import ProbabilisticAttention, SoftmaxAttention
from probattn.attention.base import LayerFactory

Attention = str | LayerFactory | Sequence[str | LayerFactory]
"""Argument ``attention`` of networks: a name, a class or a factory, for every block, or a sequence
of one per block."""
Options = Mapping[str, Any]


class LayerRecord(NamedTuple):
    """Record of a layer's name, in networks and at the command; a preset says what it changes.

    The arguments are described in ``layers.toml``.
    """

    layer: str
    meaning: str
    options: Options = {}
    vit: Options = {}
    text: Options = {}
    tabular: Options = {}
    last: int | None = None
    fixed_tokens: bool = True
    training: Options = {}
    bench: Mapping[str, Options] = {}
    in_demo: bool = True

    def factory(
        self,
        network: str | None = None,
        *,
        tokens: int | None = None,
        **options: Any,
    ) -> LayerFactory:
        """Return the factory of the layer.

        Args:
            network: kind of the network, ``"vit"``, ``"text"`` or ``"tabular"``; None for one of
                another library.
            tokens: the number of tokens, if it is fixed.
            options: options in place of the record's.
        """
        layer: type[ProbabilisticAttention] = resolve_name(self.layer)
        of_network = getattr(self, network) if network else {}
        chosen = {**self.options, **of_network, **options}
        if tokens and self.fixed_tokens and "tokens" in inspect.signature(layer).parameters:
            chosen["tokens"] = tokens
        return layer.partial(**chosen)


_TOML = (files("probattn.models") / "layers.toml").read_text(encoding="utf-8")
LAYERS = {name: LayerRecord(**record) for name, record in tomllib.loads(_TOML).items()}
"""The records by name."""


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
