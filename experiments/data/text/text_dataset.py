"""Text data sets: CoLA and IMDB, split by a seed, with tokens fitted to the training part only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from probattn.experiments.data.batch_loader import TextLoader
from probattn.experiments.data.dataset import Dataset
from probattn.experiments.data.root import Root, data_root
from probattn.experiments.data.splits import split, subsample
from probattn.experiments.data.text import corpora
from probattn.experiments.data.text.encoders import PretrainedEncoder
from probattn.experiments.data.text.labelled_texts import Texts, well_formed
from probattn.experiments.data.text.word_tokenizer import WordTokenizer

NAMES = tuple(corpora.CLASSES)  # of :func:`load`
IMDB_SIZES = (35_000, 5_000, 10_000)  # of the parts, as in the KEP-SVGP paper (appendix D.1)


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


@dataclass(frozen=True, eq=False)
class TextDataset(Dataset):
    """A text data set; a sentence that a corpus holds twice may be in two of its parts.

    Attributes:
        tokens: fitted to ``train``.
    """

    tokens: Tokens

    def batches(self, texts: Texts, **options: Any) -> TextLoader:
        """Return a loader of texts in their order, by their length, or of similar length (see :class:`TextLoader`)."""
        return TextLoader(_encode(self.tokens, texts), texts.labels, **options)

    def preprocessing(self) -> dict[str, Any]:
        """Return the kind of the data; the tokens have a file of their own."""
        return {"kind": "texts"}

    def save_preprocessing(self, folder: Path) -> None:
        """Write ``preprocessing.json`` and the tokens' own file into a run's folder, unless they are there already."""
        super().save_preprocessing(folder)
        self.tokens.save_preprocessing(folder)

    def for_run(self, folder: Path) -> Self:
        """Return the data set as the run in ``folder`` reads it: with its tokens.

        Raises:
            DatasetError: the run's tokens are missing or damaged.
        """
        return replace(self, tokens=self.tokens.for_run(folder))


def load(name: str, network: Any, *, root: Root = None, seed: int = 0, limit: int | None = None) -> TextDataset:
    """Load a text data set, split off its validation part, and fit the tokens to the training part.

    ``cola``: a tenth of the in-domain training sentences is the validation part, stratified by class; the in-domain
    development sentences are the test part, the out-of-domain ones the domain ``out-of-domain``. ``imdb``: all reviews,
    split 35,000 / 5,000 / 10,000 at random, stratified, as in the paper; because of duplicates, 65 validation and 103
    test reviews (seed 0) are also in the training part.

    Args:
        name: one of :data:`NAMES`.
        network: settings of the network, which has those of the tokens.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        seed: seed of the splits only.
        limit: keep at most this many training texts and the same fraction of the validation part, but at least two; the
            test parts keep their sizes.

    Raises:
        ValueError: ``name`` is unknown.
        DatasetError: the data are missing, incomplete or damaged.
    """
    if name not in NAMES:
        raise ValueError(f"unknown text data set {name!r}: choose one of {', '.join(NAMES)}")
    folder, generator, domains = data_root(root), torch.Generator().manual_seed(seed), {}
    if name == "cola":
        whole, test, domains["out-of-domain"] = corpora.read_cola(folder)
        tenth = len(whole) // 10
        train, valid = split(whole, sizes=(len(whole) - tenth, tenth), generator=generator)
    else:
        train, valid, test = split(corpora.read_imdb(folder), sizes=IMDB_SIZES, generator=generator)
    if limit is not None:
        train, valid = subsample(train, valid, limit=limit, num_classes=2, generator=generator)
    return from_parts(name, corpora.CLASSES[name], train, valid, test, network=network, domains=domains)


def from_parts(name: str, classes: tuple[str, ...], *parts: Texts, network: Any, **options: Any) -> TextDataset:
    """Return the data set of three parts, with tokens fitted to the first.

    Args:
        name, classes, parts, options: of :class:`TextDataset`.
        network: as for :func:`load`.
    """
    return TextDataset(name, classes, *parts, tokens=fit(network, parts[0]), **options)


def fit(network: Any, train: Texts) -> Tokens:
    """Return the tokens of a network's settings (see :mod:`probattn.experiments.config.networks`), fitted to texts."""
    if network.kind == "encoder":
        make = partial(PretrainedEncoder.load, network.encoder, max_length=network.max_length)
        return Tokens(PretrainedEncoder, make)
    options = {name: getattr(network, name) for name in ("max_length", "min_count", "max_words", "spelling")}
    return Tokens(WordTokenizer, partial(WordTokenizer.fit, train.texts, **options))


@lru_cache(maxsize=8)
def _encode(tokens: Tokens, texts: Texts) -> list[Tensor]:
    return tokens.encode(texts.texts)
