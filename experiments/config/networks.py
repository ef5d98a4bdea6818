"""Settings of networks: options of their constructors, and of the tokens of texts."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from probattn.experiments.config.data import DataPath
from probattn.experiments.config.schema import settings_class
from probattn.experiments.config.validation import Count
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.models import PretrainedClassifier, TabularTransformer, TextTransformer, ViT


@dataclass(frozen=True, kw_only=True)
class Network:
    """Settings of a network.

    Args:
        kind: what the network is for: images, texts, texts with a pretrained encoder, or tables.
    """

    kind: Literal["vit", "text", "encoder", "tabular"]


@dataclass(frozen=True, kw_only=True)
class EncoderNetwork(Network):
    """Settings of a pretrained encoder of texts that is trained further.

    Args:
        encoder: name or folder of a Hugging Face encoder.
        max_length: number of tokens that are read of each text.
    """

    encoder: DataPath | None = None
    max_length: Count = 128


# Parameters that are no settings, because the data set or the layer decides.
FROM_DATA = ("classes", "outputs", "image_size", "channels", "sizes", "units", "embedding", "encoder", "texts")
FROM_LAYER = ("attention", "last")
_settings = partial(settings_class, leave_out=(*FROM_DATA, *FROM_LAYER))
# Settings of each network by its kind.
NETWORKS = {
    "vit": _settings("ViTSettings", Network, ViT, kind="vit"),
    "text": _settings("TextSettings", Network, TextTransformer, WordTokenizer.fit, kind="text", max_length=512),
    "encoder": _settings("EncoderSettings", EncoderNetwork, PretrainedClassifier, kind="encoder"),
    "tabular": _settings("TabularSettings", Network, TabularTransformer, kind="tabular"),
}


def network_class(kind: str) -> type[Network]:
    """Return the class of a network's settings; of an unknown kind the one that refuses it."""
    return NETWORKS.get(kind, Network)
