"""The records of ``layers.toml``: each is what networks and the command know of a layer's name."""

import inspect
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the command's help has the names, and does without PyTorch
    from probattn import ProbabilisticAttention
    from probattn.attention.base import LayerFactory

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
    ) -> "LayerFactory":
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
