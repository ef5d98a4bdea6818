"""Settings of attention layers, this library's and others'; their options are those of the constructors."""

import functools
import inspect
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    families,
)
from probattn.attention.base import LayerFactory
from probattn.attention.kep_svgp_authors import AuthorsKEPSVGPAttention
from probattn.experiments.config.imported import import_object
from probattn.experiments.config.schema import settings_class
from probattn.experiments.config.validation import unknown

ENTRY_POINTS = "probattn.layers"
"""Group of entry points by which packages bring layers: ``name = "package.module:Class"``."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Settings of one layer; all but these are options of its constructor.

    Args:
        name: name of a layer, or ``package.module:Class`` of your own, whose constructor takes ``(dim, heads)``.
        last: number of blocks that have the layer, counted from the last; those below have softmax attention. None:
            all blocks.
        guide: family of the guide of its latent variables.
        guide_scale: initial standard deviation of the guide, relative to the prior's.
        init_loc: initial means of the guide, as a multiple of a draw from the prior; None is the family's default.
        fixed_tokens: give the constructor the number of tokens where it is fixed, if it has a parameter ``tokens``.
    """

    constructor: ClassVar[type]
    meanings: ClassVar[dict[str, str]]
    name: str
    last: Annotated[int, Field(ge=0)] | None = None
    guide: Literal["full", "diagonal", "lowrank", "delta"] = "full"
    guide_scale: PositiveFloat = 0.1
    init_loc: float | None = None
    fixed_tokens: bool = True

    @property
    def family(self) -> str | families.Family:
        """Family of the guide; its name alone with the family's own initial values."""
        family = families.FAMILIES[self.guide]
        names = {"init_scale": self.guide_scale, "init_loc": self.init_loc}
        known = inspect.signature(family).parameters
        given = {
            name: value
            for name, value in names.items()
            if name in known and value is not None and value != known[name].default
        }
        return functools.partial(family, **given) if given else self.guide

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        common = {each.name for each in fields(Layer)}
        options = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in common}
        if "tokens" in inspect.signature(self.constructor).parameters and self.fixed_tokens:
            options["tokens"] = tokens
        return functools.partial(self.constructor, **options)


KNOWN: dict[str, tuple[type, dict[str, Any]]] = {
    "softmax": (SoftmaxAttention, {}),
    "kep-svgp": (KEPSVGPAttention, {"last": 1, "rank": 10, "merge": "concat", "eta": 10.0}),
    "kep-svgp-authors": (AuthorsKEPSVGPAttention, {"last": 1, "rank": 10, "merge": "concat", "eta": 10.0}),
    "kernel": (KernelAttention, {}),
    "sgpa": (SGPAttention, {"init_loc": 0.0}),
    "cgp": (CGPAttention, {}),
    "sparse-cgp": (SparseCGPAttention, {"fixed_tokens": False}),
}
"""Layers of this library by name, with the command's defaults where they differ from the constructor's."""


def names() -> list[str]:
    """Return the names of this library's layers, and of those that other packages bring."""
    return [*KNOWN, *(each.name for each in entry_points(group=ENTRY_POINTS))]


@functools.cache
def layer_class(name: str) -> type[Layer]:
    """Return the class of a layer's settings.

    Args:
        name: name of a layer, or ``package.module:Class``.

    Raises:
        SettingsError: an unknown name, or a class that cannot be imported or has options that settings cannot hold.
    """
    if ":" in name:
        constructor, defaults = import_object(name), {}
    elif name in KNOWN:
        constructor, defaults = KNOWN[name]
    else:
        brought = [each for each in entry_points(group=ENTRY_POINTS) if each.name == name]
        if not brought:
            raise unknown("layer", name, names(), listing="your own is package.module:Class")
        constructor, defaults = import_object(brought[0].value), {}
    leave_out = ("dim", "heads", "tokens")
    derived = settings_class(
        constructor.__name__, Layer, constructor, leave_out=leave_out, defaults={"name": name} | defaults
    )
    derived.constructor = constructor
    return derived
