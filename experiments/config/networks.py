"""Settings of networks: options of their constructors, and of the tokens of texts."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from probattn.experiments.config.schema import settings_class
from probattn.experiments.config.validation import SettingsError, unknown
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.models import PretrainedClassifier, TabularTransformer, TextTransformer, ViT

SIZES = ("dim", "depth", "heads", "mlp_dim", "patch_size", "max_length")


def _absolute(encoder: str) -> str:
    """Resolve the path of a local encoder, so that the run can be opened from any folder."""
    return str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder


@dataclass(frozen=True, kw_only=True)
class Network:
    """Settings of a network.

    Args:
        kind: what the network is for.
    """

    meanings: ClassVar[dict[str, str]]
    kind: str

    def __post_init__(self) -> None:
        # A network without blocks would train, and constructors take the other sizes only after the data are read.
        sizes = {field.name: getattr(self, field.name) for field in fields(self) if field.name in SIZES}
        if wrong := [f"network.{name}={value}" for name, value in sizes.items() if not 1 <= value < 2**31]:
            raise SettingsError(f"{', '.join(wrong)}: a size is at least 1")


@dataclass(frozen=True, kw_only=True)
class EncoderNetwork(Network):
    """Settings of a pretrained encoder of texts that is trained further.

    Args:
        encoder: name or folder of a Hugging Face encoder.
        max_length: number of tokens that are read of each text.
    """

    encoder: Annotated[str, AfterValidator(_absolute)] | None = None
    max_length: int = 128


# Of these parameters the data set or the layer decides.
_GIVEN = ("attention", "classes", "outputs", "image_size", "channels", "sizes", "units", "embedding", "encoder", "last")


def _settings(kind: str, base: type[Network], *constructors: Callable[..., Any], **defaults: Any) -> type[Network]:
    options = {"leave_out": (*_GIVEN, "texts"), "defaults": {"kind": kind} | defaults}
    return settings_class(f"{kind.title()}Settings", base, *constructors, **options)


NETWORKS = {
    "vit": _settings("vit", Network, ViT),
    "text": _settings("text", Network, TextTransformer, WordTokenizer.fit, max_length=512),
    "encoder": _settings("encoder", EncoderNetwork, PretrainedClassifier),
    "tabular": _settings("tabular", Network, TabularTransformer),
}
"""Settings of each network by its kind."""


def network_class(kind: str) -> type[Network]:
    """Return the class of a network's settings.

    Raises:
        SettingsError: an unknown kind.
    """
    if kind not in NETWORKS:
        raise unknown("network", kind, NETWORKS, listing=f"known: {', '.join(NETWORKS)}")
    return NETWORKS[kind]
