"""Tokens of a text data set: words with their spelling, or those of a pretrained encoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from probattn.experiments.data.text.encoders import PretrainedEncoder
from probattn.experiments.data.text.labelled_texts import Texts, well_formed
from probattn.experiments.data.text.word_tokenizer import WordTokenizer

Encoder = WordTokenizer | PretrainedEncoder  # conversions of texts to tensors


@dataclass(frozen=True, eq=False)
class Tokens:
    """Conversion of texts to tensors, which is fitted or read when it is first used.

    Args:
        kind: class of the tokenizer or encoder.
        make: returns it.
    """

    kind: type[Encoder]
    make: Callable[[], Encoder]

    @cached_property
    def encoder(self) -> Encoder:
        """The tokenizer or encoder."""
        return self.make()

    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Return a tensor ``(tokens, ...)`` for each text."""
        return self.encoder.encode_batch(well_formed(texts))

    def embedding(self, dim: int) -> nn.Module:
        """Return the embedding of words; a pretrained encoder has its own."""
        return self.encoder.embedding(dim)

    def save_preprocessing(self, folder: Path) -> None:
        """Save in a run's folder what determines its tokens, unless it is there already."""
        if not (folder / self.kind.file).exists():
            self.encoder.save(folder / self.kind.file)

    def for_run(self, folder: Path) -> "Tokens":
        """Return the tokens that the run in ``folder`` was trained with; raise DatasetError if they are damaged."""
        tokens = Tokens(self.kind, partial(self.kind.read, folder / self.kind.file))
        _ = tokens.encoder  # read now, so that damage is an error here
        return tokens


def fit(network: Any, train: Texts) -> Tokens:
    """Return the tokens of a network's settings (see :mod:`probattn.experiments.config.networks`), fitted to texts."""
    if network.kind == "encoder":
        make = partial(PretrainedEncoder.load, network.encoder, max_length=network.max_length)
        return Tokens(PretrainedEncoder, make)
    options = {name: getattr(network, name) for name in ("max_length", "min_count", "max_words", "spelling")}
    return Tokens(WordTokenizer, partial(WordTokenizer.fit, train.texts, **options))
