"""Settings of networks and of their attention layers, also others'; their options are those of the
constructors."""

import inspect
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, PositiveFloat

from probattn import families
from probattn.attention.base import LayerFactory
from probattn.experiments.config.data import DataPath
from probattn.experiments.config.schema import find_object, options_of, settings_class
from probattn.experiments.config.validation import Count, setting
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.models import PretrainedClassifier, TabularTransformer, TextTransformer, ViT
from probattn.models.layer_records import LAYERS, LayerRecord


@setting()
class Layer:
    """Settings of one layer; all but these are options of its constructor.

    Args:
        name: name of a layer, or ``package.module:Class`` of your own, whose constructor takes
            ``(dim, heads)``.
        last: number of blocks that have the layer, counted from the last; those below have softmax
            attention. None: all blocks.
        guide: family of the guide of its latent variables.
        guide_scale: initial standard deviation of the guide, relative to the prior's.
        init_loc: initial means of the guide, as a multiple of a draw from the prior.
        fixed_tokens: give the constructor the number of tokens where it is fixed, if it has a
            parameter ``tokens``.
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
        scale = (
            {} if self.guide == "delta" else {"init_scale": self.guide_scale}
        )  # a point mass has none
        return partial(cast(Any, families.FAMILIES[self.guide]), init_loc=self.init_loc, **scale)

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        options = options_of(self.constructor, self)
        if self.fixed_tokens and "tokens" in inspect.signature(self.constructor).parameters:
            options["tokens"] = tokens
        return partial(self.constructor, **options)


# Names of the layers of this library.
KNOWN = tuple(LAYERS)


@cache
def layer_class(name: str) -> type[Layer]:
    """Return the class of a layer's settings.

    Args:
        name: name of a layer, or ``package.module:Class``.

    Raises:
        SettingsError: an unknown name, or a class that cannot be imported or has options that
            settings cannot hold.
    """
    record = LAYERS.get(name, LayerRecord(layer=name, meaning=""))
    constructor = find_object("layer", record.layer, KNOWN)
    defaults = {"name": name, "last": record.last, "fixed_tokens": record.fixed_tokens}
    defaults |= {"init_loc": record.training.get("init_loc", Layer.init_loc), **record.options}
    left_out = ("dim", "heads", "tokens")
    return settings_class(constructor.__name__, Layer, constructor, leave_out=left_out, **defaults)


@setting()
class Network:
    """Settings of a network.

    Args:
        kind: what the network is for: images, texts, texts with a pretrained encoder, or tables.
    """

    kind: Literal["vit", "text", "encoder", "tabular"]


@setting()
class EncoderNetwork(Network):
    """Settings of a pretrained encoder of texts that is trained further.

    Args:
        encoder: name or folder of a Hugging Face encoder.
        max_length: number of tokens that are read of each text.
    """

    encoder: DataPath | None = None
    max_length: Count = 128


# Parameters that are no settings, because the data set decides; those of attention are the layer's.
FROM_DATA = (
    "classes",
    "outputs",
    "image_size",
    "channels",
    "sizes",
    "units",
    "embedding",
    "encoder",
    "texts",
    "letters",
)
_settings = partial(settings_class, leave_out=(*FROM_DATA, "attention", "last"))
# Settings of each network by its kind.
NETWORKS = {
    "vit": _settings("ViTSettings", Network, ViT, kind="vit"),
    "text": _settings(
        "TextSettings", Network, TextTransformer, WordTokenizer.fit, kind="text", max_length=512
    ),
    "encoder": _settings("EncoderSettings", EncoderNetwork, PretrainedClassifier, kind="encoder"),
    "tabular": _settings("TabularSettings", Network, TabularTransformer, kind="tabular"),
}


def network_class(kind: str) -> type[Network]:
    """Return the class of a network's settings; of an unknown kind the one that refuses it."""
    return NETWORKS.get(kind, Network)
