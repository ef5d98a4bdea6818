"""What a network takes for the tokens of a text: words and their spelling, or the features of another network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from probattn.experiments.text.frozen import FrozenEncoder
from probattn.experiments.text.texts import Texts
from probattn.experiments.text.tokenizer import Tokenizer
from probattn.models.embeddings import SpelledEmbedding, WordEmbedding


class TokenSettings(NamedTuple):
    """How texts are cut into tokens; see :class:`~probattn.experiments.network_settings.TextSettings`."""

    max_length: int
    min_count: int
    max_words: int | None
    spelling: int
    encoder: str | None


class Tokens(Protocol):
    """Texts as tensors, and the embedding that reads them."""

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """A tensor ``(tokens, ...)`` of each text."""

    def embedding(self, dim: int) -> nn.Module:
        """Maps a padded batch of them ``(batch, tokens, ...)`` to ``(batch, tokens, dim)``."""

    def save(self, folder: Path) -> None:
        """Writes what was fitted to the training part into a run's folder."""


@dataclass(frozen=True, eq=False)
class Words:
    """Tokens of a tokenizer that was fitted to the training part."""

    tokenizer: Tokenizer

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Ids ``(n,)`` of each text, or ``(n, 1 + K)`` with the characters of its words."""
        return [self.tokenizer.encode(text) for text in texts]

    def embedding(self, dim: int) -> nn.Module:
        """Vectors of words, and of their spelling where the tokenizer keeps it."""
        words, characters = self.tokenizer.num_words, self.tokenizer.num_characters
        return SpelledEmbedding(words, characters, dim) if self.tokenizer.spelling else WordEmbedding(words, dim)

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json``."""
        self.tokenizer.save(folder / "tokenizer.json")


@dataclass(frozen=True, eq=False)
class Features:
    """Tokens of another network, whose features are computed once and kept on disk."""

    encoder: FrozenEncoder

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Features ``(n, width)`` of each text."""
        return self.encoder.encode(texts)

    def embedding(self, dim: int) -> nn.Module:
        """A linear map."""
        return nn.Linear(self.encoder.width, dim)

    def save(self, folder: Path) -> None:
        """Nothing was fitted."""


def fit(settings: TokenSettings, train: Texts, *, cache: Path) -> Tokens:
    """The tokens of these settings, fitted to the training part where there is something to fit.

    Raises:
        DatasetError: an encoder that is not to be had.
    """
    if settings.encoder is not None:
        return Features(FrozenEncoder(settings.encoder, max_length=settings.max_length, cache=cache))
    length, count, most, spelling, _ = settings
    return Words(Tokenizer.fit(train.texts, max_length=length, min_count=count, max_words=most, spelling=spelling))
