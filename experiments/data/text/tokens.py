"""Tokens of a text data set: words with their spelling, features of a frozen encoder, or ids of an encoder to train."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.sealed_files import read_json, write_json
from probattn.experiments.data.text.frozen_encoder import FrozenEncoder
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.pretrained_encoder import PretrainedEncoder
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.models.embeddings import SpelledEmbedding, WordEmbedding

TOKENIZER, ENCODER = "tokenizer.json", "encoder.json"
"""Files of the preprocessing in a run's folder."""


class Tokens(Protocol):
    """Conversion of texts to tensors."""

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Return a tensor ``(tokens, ...)`` for each text."""

    def save_preprocessing(self, folder: Path) -> None:
        """Save in a run's folder what determines its tokens, unless it is there already."""

    def for_run(self, folder: Path) -> "Tokens":
        """Return the tokens that the run in ``folder`` was trained with."""


@dataclass(frozen=True, eq=False)
class WordTokens:
    """Word ids of a tokenizer that is fitted to the training part, or read from a run, when it is first used."""

    make_tokenizer: Callable[[], WordTokenizer]

    @cached_property
    def tokenizer(self) -> WordTokenizer:
        """The tokenizer."""
        return self.make_tokenizer()

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the ids ``(n,)`` of each text, or ``(n, 1 + K)`` with the characters of its words."""
        return [self.tokenizer.encode(text) for text in texts]

    def embedding(self, dim: int) -> nn.Module:
        """Return the embedding of words, and of their spelling if the tokenizer has it."""
        words, characters = self.tokenizer.num_words, self.tokenizer.num_characters
        return SpelledEmbedding(words, characters, dim) if self.tokenizer.spelling else WordEmbedding(words, dim)

    def save_preprocessing(self, folder: Path) -> None:
        """Write ``tokenizer.json``, unless it exists."""
        if not (folder / TOKENIZER).exists():
            self.tokenizer.save(folder / TOKENIZER)

    def for_run(self, folder: Path) -> "WordTokens":
        """Return the tokens of the run's ``tokenizer.json``.

        Raises:
            DatasetError: the file is missing.
            DamagedFileError: it is damaged.
            ValueError: it is no tokenizer of this library.
        """
        if not (folder / TOKENIZER).exists():
            raise DatasetError(f"{folder} lacks {TOKENIZER}, without which its texts cannot be read; restore it")
        tokens = WordTokens(partial(WordTokenizer.load, folder / TOKENIZER))
        _ = tokens.tokenizer  # loaded now, so that damage is an error here
        return tokens


@dataclass(frozen=True, eq=False)
class PretrainedTokens:
    """Token ids of an encoder that is trained further, which is read when it is first used."""

    make_encoder: Callable[[], PretrainedEncoder]

    @cached_property
    def encoder(self) -> PretrainedEncoder:
        """The encoder with its tokenizer."""
        return self.make_encoder()

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the ids ``(n,)`` of each text."""
        return self.encoder.encode(texts)

    def save_preprocessing(self, folder: Path) -> None:
        """Write ``encoder.json`` with the encoder's configuration and tokenizer, unless it exists."""
        if not (folder / ENCODER).exists():
            self.encoder.save(folder / ENCODER)

    def for_run(self, folder: Path) -> "PretrainedTokens":
        """Return the tokens of the run's ``encoder.json``; the encoder's own folder is not needed.

        Raises:
            DatasetError: the file is missing.
            MissingExtraError: transformers is not installed.
            DamagedFileError: the file is damaged.
            ValueError: it holds no encoder.
        """
        if not (folder / ENCODER).exists():
            raise DatasetError(f"{folder} lacks {ENCODER}, without which its texts cannot be read; restore it")
        tokens = PretrainedTokens(partial(PretrainedEncoder.read, folder / ENCODER))
        _ = tokens.encoder  # read now, so that damage is an error here
        return tokens


@dataclass(frozen=True, eq=False)
class EncoderTokens:
    """Features of a frozen encoder, computed once and cached on disk."""

    encoder: FrozenEncoder

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the features ``(n, width)`` of each text."""
        return self.encoder.encode(texts)

    def embedding(self, dim: int) -> nn.Module:
        """Return a linear map of the features."""
        return nn.Linear(self.encoder.width, dim)

    def save_preprocessing(self, folder: Path) -> None:
        """Write ``encoder.json`` with the encoder's digest, unless it exists."""
        if not (folder / ENCODER).exists():
            write_json(folder / ENCODER, {"identity": self.encoder.identity})

    def for_run(self, folder: Path) -> "EncoderTokens":
        """Return these tokens if the encoder is the one of the run's ``encoder.json``.

        Raises:
            DatasetError: the encoder differs, or the file is missing.
            DamagedFileError: the file is damaged.
        """
        try:
            saved = read_json(folder / ENCODER)
        except FileNotFoundError as error:
            raise DatasetError(f"{folder / ENCODER} is missing; restore it") from error
        if saved.get("identity") != self.encoder.identity:
            raise DatasetError(f"the encoder's weights differ from those that {folder} was trained with; restore them")
        return self


def fit(network: Any, train: Texts, *, cache: Path) -> Tokens:
    """Return the tokens of a network's settings; words are fitted to the training part when they are first used.

    Args:
        network: settings of a network for texts, see :mod:`probattn.experiments.config.networks`.
        train: training part.
        cache: folder of the features of frozen encoders.

    Raises:
        DatasetError: the frozen encoder cannot be loaded.
    """
    if network.kind == "encoder":
        return PretrainedTokens(partial(PretrainedEncoder.load, network.encoder, max_length=network.max_length))
    if network.encoder is not None:
        return EncoderTokens(FrozenEncoder(network.encoder, max_length=network.max_length, cache=cache))
    options = {name: getattr(network, name) for name in ("max_length", "min_count", "max_words", "spelling")}
    return WordTokens(partial(WordTokenizer.fit, train.texts, **options))
