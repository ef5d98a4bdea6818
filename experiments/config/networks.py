"""Settings of networks: options of their constructors, and of the tokens of texts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from probattn.experiments.config.data import DataPath
from probattn.experiments.config.schema import settings_class
from probattn.experiments.config.validation import Count, unknown
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.models import PretrainedClassifier, TabularTransformer, TextTransformer, ViT


@dataclass(frozen=True, kw_only=True)
class Network:
    """Settings of a network.

    Args:
        kind: what the network is for.
    """

    kind: str


@dataclass(frozen=True, kw_only=True)
class EncoderNetwork(Network):
    """Settings of a pretrained encoder of texts that is trained further.

    Args:
        encoder: name or folder of a Hugging Face encoder.
        max_length: number of tokens that are read of each text.
    """

    encoder: DataPath | None = None
    max_length: Count = 128


# Of these parameters the data set or the layer decides.
_GIVEN = ("attention", "classes", "outputs", "image_size", "channels", "sizes", "units", "embedding", "encoder", "last")


def _settings(kind: str, base: type[Network], *constructors: Callable[..., Any], **defaults: Any) -> type[Network]:
    options = {"leave_out": (*_GIVEN, "texts"), "defaults": {"kind": kind} | defaults}
    return settings_class(f"{kind.title()}Settings", base, *constructors, **options)


# Settings of each network by its kind.
NETWORKS = {
    "vit": _settings("vit", Network, ViT),
    "text": _settings("text", Network, TextTransformer, WordTokenizer.fit, max_length=512),
    "encoder": _settings("encoder", EncoderNetwork, PretrainedClassifier),
    "tabular": _settings("tabular", Network, TabularTransformer),
}


def network_class(kind: str) -> type[Network]:
    """Return the class of a network's settings.

    Raises:
        SettingsError: an unknown kind.
    """
    if kind not in NETWORKS:
        raise unknown("network", kind, NETWORKS, listing=f"known: {', '.join(NETWORKS)}")
    return NETWORKS[kind]
