"""Settings of attention layers, this library's and others'; their options are those of the constructors."""

import functools
import inspect
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from probattn import families
from probattn.attention.base import LayerFactory
from probattn.experiments.config.schema import find_object, options_of, settings_class
from probattn.experiments.config.yaml_files import packaged


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Settings of one layer; all but these are options of its constructor.

    Args:
        name: name of a layer, or ``package.module:Class`` of your own, whose constructor takes ``(dim, heads)``.
        last: number of blocks that have the layer, counted from the last; those below have softmax attention. None:
            all blocks.
        guide: family of the guide of its latent variables.
        guide_scale: initial standard deviation of the guide, relative to the prior's.
        init_loc: initial means of the guide, as a multiple of a draw from the prior.
        fixed_tokens: give the constructor the number of tokens where it is fixed, if it has a parameter ``tokens``.
    """

    constructor: ClassVar[type]
    name: str
    last: Annotated[int, Field(ge=0)] | None = None
    guide: Literal["full", "diagonal", "lowrank", "delta"] = "full"
    guide_scale: PositiveFloat = 0.1
    init_loc: float = 1.0
    fixed_tokens: bool = True

    @property
    def family(self) -> families.Family:
        """Family of the guide with its initial values."""
        family = families.FAMILIES[self.guide]
        initial = {"init_scale": self.guide_scale, "init_loc": self.init_loc}
        parameters = inspect.signature(family).parameters
        return functools.partial(family, **{name: initial[name] for name in initial if name in parameters})

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        options = options_of(self.constructor, self)
        if self.fixed_tokens and "tokens" in inspect.signature(self.constructor).parameters:
            options["tokens"] = tokens
        return functools.partial(self.constructor, **options)


# Names of the layers of this library, which ``layers.yaml`` describes.
KNOWN = tuple(packaged("layers"))


@functools.cache
def layer_class(name: str) -> type[Layer]:
    """Return the class of a layer's settings.

    Args:
        name: name of a layer, or ``package.module:Class``.

    Raises:
        SettingsError: an unknown name, or a class that cannot be imported or has options that settings cannot hold.
    """
    about = packaged("layers").get(name, {})
    constructor = find_object("layer", about.get("class", name), KNOWN)
    options = {"leave_out": ("dim", "heads", "tokens"), "name": name} | about.get("options", {})
    return settings_class(constructor.__name__, Layer, constructor, **options)
