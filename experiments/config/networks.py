"""Settings of each network."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from probattn.experiments.config.validation import STRICT, Count, Share

Depth = Annotated[int, Field(ge=1, le=1000)]
"""Type of a number of blocks."""


def _absolute(encoder: str) -> str:
    """Resolve the path of a local encoder, so that the run can be opened from any folder."""
    return str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ViTSettings:
    """Vision transformer."""

    kind: Literal["vit"] = "vit"
    patch_size: Count
    dim: Count
    depth: Depth
    heads: Count
    mlp_dim: Count
    dropout: Share = 0.1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TextSettings:
    """Text transformer and its tokens.

    The vocabulary holds at most ``max_words`` words that occur ``min_count`` times or more in the training part; with
    ``spelling=K`` the first K characters of every word are embedded as well. With ``encoder``, the name or folder of a
    Hugging Face encoder, the tokens are its frozen features instead.
    """

    kind: Literal["text"] = "text"
    dim: Count
    depth: Depth
    heads: Count
    mlp_dim: Count
    dropout: Share = 0.1
    max_length: Count = 512
    min_count: Count = 2
    max_words: Count | None = None
    spelling: Annotated[int, Field(ge=0, le=1000)] = 0
    encoder: Annotated[str, AfterValidator(_absolute)] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderSettings:
    """Pretrained encoder that is trained further, with a linear head.

    ``encoder`` is the name or folder of a Hugging Face encoder, whose tokenizer gives the tokens. Only the layer of the
    ``layer.last`` blocks is replaced. ``dropout`` is that of the head; the encoder has its own. ``pooling`` is over the
    real tokens, or takes the first one.
    """

    kind: Literal["encoder"] = "encoder"
    encoder: Annotated[str, AfterValidator(_absolute)] | None = None
    max_length: Count = 128
    dropout: Share = 0.1
    pooling: Literal["mean", "cls"] = "mean"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TabularSettings:
    """Transformer for tables, whose tokens are the columns."""

    kind: Literal["tabular"] = "tabular"
    dim: Count
    depth: Depth
    heads: Count
    mlp_dim: Count
    dropout: Share = 0.1


def _kind(network: Any) -> Any:
    """Return the kind of network; runs from before there were texts did not save it."""
    return network.get("kind", "vit") if isinstance(network, dict) else getattr(network, "kind", None)


NetworkSettings = Annotated[
    Annotated[ViTSettings, Tag("vit")]
    | Annotated[TextSettings, Tag("text")]
    | Annotated[EncoderSettings, Tag("encoder")]
    | Annotated[TabularSettings, Tag("tabular")],
    Discriminator(_kind),
]
