"""What a network takes for the tokens of a text: words and their spelling, or the features of another network."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from probattn.experiments.data.images.images import DatasetError
from probattn.experiments.data.text.frozen_encoder import FrozenEncoder
from probattn.experiments.data.text.texts import Texts
from probattn.experiments.data.text.tokenizer import Tokenizer
from probattn.inference.io.atomic_write import atomic_write
from probattn.models.embeddings import SpelledEmbedding, WordEmbedding

TOKENIZER, ENCODER = "tokenizer.json", "encoder.json"


class TokenSettings(NamedTuple):
    """How texts are cut into tokens; see :class:`~probattn.experiments.config.networks.TextSettings`."""

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

    def keep(self, folder: Path) -> None:
        """Writes into a run's folder what is needed to make the same tokens again, if it lacks it."""

    def of(self, folder: Path) -> "Tokens":
        """The tokens that the run in a folder was trained with."""


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

    def keep(self, folder: Path) -> None:
        """Writes ``tokenizer.json``, if there is none."""
        if not (folder / TOKENIZER).exists():
            self.tokenizer.save(folder / TOKENIZER)

    def of(self, folder: Path) -> "Words":
        """Those of ``tokenizer.json``.

        Raises:
            DatasetError: there is none.
            ValueError: a damaged one.
        """
        if not (folder / TOKENIZER).exists():
            raise DatasetError(f"{folder} has lost {TOKENIZER}, without which its texts cannot be read; put it back")
        return Words(Tokenizer.load(folder / TOKENIZER))


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

    def keep(self, folder: Path) -> None:
        """Writes ``encoder.json`` with the encoder's digest, if there is none."""
        if not (folder / ENCODER).exists():
            with atomic_write(folder / ENCODER) as draft:
                draft.write_text(json.dumps({"identity": self.encoder.identity}) + "\n", encoding="utf-8")

    def of(self, folder: Path) -> "Features":
        """These, if the encoder is the one of ``encoder.json``.

        Raises:
            DatasetError: another one, or no such file.
        """
        try:
            kept = json.loads((folder / ENCODER).read_text(encoding="utf-8"))["identity"]
        except (OSError, ValueError, KeyError) as error:
            raise DatasetError(f"{folder / ENCODER} is missing or damaged ({error}); put it back") from error
        if kept != self.encoder.identity:
            raise DatasetError(
                f"the encoder's weights are no longer those that {folder} was trained with; put them back"
            )
        return self


def fit(settings: TokenSettings, train: Texts, *, cache: Path) -> Tokens:
    """The tokens of these settings, fitted to the training part where there is something to fit.

    Raises:
        DatasetError: an encoder that is not to be had.
    """
    if settings.encoder is not None:
        return Features(FrozenEncoder(settings.encoder, max_length=settings.max_length, cache=cache))
    length, count, most, spelling, _ = settings
    return Words(Tokenizer.fit(train.texts, max_length=length, min_count=count, max_words=most, spelling=spelling))
