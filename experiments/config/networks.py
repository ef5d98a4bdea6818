"""The settings of each network, the data that it reads, and the network that they make."""

import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from probattn.attention.base import LayerFactory
from probattn.experiments.config.layers import check_positive
from probattn.experiments.data.images import datasets
from probattn.experiments.data.images.datasets import ImageDataset
from probattn.experiments.data.text import datasets as text_datasets
from probattn.experiments.data.text.datasets import TextDataset
from probattn.experiments.data.text.tokens import TokenSettings
from probattn.models import TextTransformer, ViT


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which data, and the seed of its validation split; ``limit`` keeps so many training examples."""

    name: str
    batch_size: int
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(self, "batch_size", "limit")


@dataclass(frozen=True, kw_only=True)
class ViTSettings:
    """The vision transformer."""

    kind: Literal["vit"] = "vit"
    patch_size: int
    dim: int
    depth: int
    heads: int
    mlp_dim: int
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "patch_size", "dim", "depth", "heads", "mlp_dim")

    def load(self, data: DataSettings, root: Path | None) -> ImageDataset:
        """The images of a run."""
        return datasets.load(data.name, root=root, seed=data.seed, limit=data.limit)

    def tokens(self, dataset: ImageDataset) -> int:
        """How many tokens attention sees."""
        return (dataset.train.images.shape[-1] // self.patch_size) ** 2

    def build(self, dataset: ImageDataset, attention: Sequence[LayerFactory]) -> nn.Module:
        """The network, with an attention layer for each block."""
        channels, size = dataset.train.images.shape[1:3]
        options = asdict(self)
        del options["kind"]
        return ViT(image_size=size, channels=channels, classes=len(dataset.classes), attention=attention, **options)


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The transformer of texts, and what it takes for tokens.

    Words of the training part that occur ``min_count`` times or more, at most ``max_words`` of them, have vectors; with
    ``spelling=K`` the first K characters of every word are read, too. With ``encoder``, the name or folder of a Hugging
    Face encoder, tokens are its frozen features instead.
    """

    kind: Literal["text"] = "text"
    dim: int
    depth: int
    heads: int
    mlp_dim: int
    dropout: float = 0.1
    max_length: int = 512
    min_count: int = 2
    max_words: int | None = None
    spelling: int = 0
    encoder: str | None = None

    def __post_init__(self) -> None:
        check_positive(self, "dim", "depth", "heads", "mlp_dim", "max_length", "min_count", "max_words")
        if self.encoder is not None and Path(self.encoder).is_dir():
            object.__setattr__(self, "encoder", str(Path(self.encoder).resolve()))  # a run is opened from anywhere

    def load(self, data: DataSettings, root: Path | None) -> TextDataset:
        """The texts of a run."""
        tokens = TokenSettings(self.max_length, self.min_count, self.max_words, self.spelling, self.encoder)
        return text_datasets.load(data.name, tokens, root=root, seed=data.seed, limit=data.limit)

    def tokens(self, dataset: TextDataset) -> None:
        """How many tokens attention sees: it varies."""

    def build(self, dataset: TextDataset, attention: Sequence[LayerFactory]) -> nn.Module:
        """The network, with an attention layer for each block."""
        return TextTransformer(
            dataset.tokens.embedding(self.dim),
            max_length=self.max_length,
            classes=len(dataset.classes),
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            mlp_dim=self.mlp_dim,
            dropout=self.dropout,
            attention=attention,
        )


NetworkSettings = ViTSettings | TextSettings
NETWORKS: dict[str, type[NetworkSettings]] = {each.kind: each for each in typing.get_args(NetworkSettings)}
"""Settings of each network by its kind."""
