"""Data sets of texts: CoLA and IMDB, split by a seed, with tokens that are fitted to the training part alone."""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from probattn.experiments.data.images.datasets import data_root
from probattn.experiments.data.images.images import split
from probattn.experiments.data.text import cola, imdb, tokens
from probattn.experiments.data.text.loader import TextLoader
from probattn.experiments.data.text.texts import Texts
from probattn.experiments.data.text.tokens import Tokens, TokenSettings

NAMES = ("cola", "imdb")
"""The names :func:`load` knows."""
IMDB_SIZES = (35_000, 5_000, 10_000)
"""The parts of the KEP-SVGP paper (appendix D.1)."""


@dataclass(frozen=True, eq=False)
class TextDataset:
    """Texts split in three, what they are cut into, and further test sets of the same task.

    Attributes:
        name: as given to :func:`load`.
        classes: names, in the order of the labels.
        train, valid, test: disjoint parts; sentences that a corpus holds twice may lie in two of them.
        tokens: fitted to ``train``.
        domains: test sets from elsewhere, by name.
    """

    name: str
    classes: tuple[str, ...]
    train: Texts
    valid: Texts
    test: Texts
    tokens: Tokens
    domains: Mapping[str, Texts]

    def training(self, *, batch_size: int, generator: torch.Generator, device: str = "cpu") -> TextLoader:
        """Batches of similar length in random order."""
        encoded = _encoded(self.tokens, self.train)
        return TextLoader(
            encoded, self.train.labels, batch_size=batch_size, shuffle=True, generator=generator, device=device
        )

    def sample(self, number: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """A batch of so many training texts."""
        encoded, chosen = (
            _encoded(self.tokens, self.train),
            torch.randperm(len(self.train), generator=generator)[:number],
        )
        texts = [encoded[index] for index in chosen.tolist()]
        return next(iter(TextLoader(texts, self.train.labels[chosen], batch_size=number)))

    def batches(self, texts: Texts, *, batch_size: int, device: str = "cpu") -> TextLoader:
        """Batches of any texts in their order."""
        return TextLoader(_encoded(self.tokens, texts), texts.labels, batch_size=batch_size, device=device)

    def keep(self, folder: Path) -> None:
        """Writes into a run's folder what other texts are read by, if it lacks it."""
        self.tokens.keep(folder)

    def of(self, folder: Path) -> "TextDataset":
        """The same data as the run in a folder reads it.

        Raises:
            DatasetError: it has kept nothing, or what it was trained with is no longer there.
            ValueError: a damaged tokenizer.
        """
        return replace(self, tokens=self.tokens.of(folder))


def load(
    name: str,
    settings: TokenSettings,
    *,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> TextDataset:
    """Load a data set, cut off its validation part, and fit the tokens to what is left for training.

    ``cola``: a tenth of the in-domain training sentences is the validation part, stratified by class; the in-domain
    development sentences are the test part, the out-of-domain ones the domain ``out-of-domain``. ``imdb``: all reviews,
    split 35,000 / 5,000 / 10,000 at random, stratified, as in the paper: of its
    duplicates, 65 validation and 103 test reviews (seed 0) are in the training part, too.

    Args:
        name: one of :data:`NAMES`.
        settings: how texts are cut into tokens.
        root: folder to look in; default: ``$PROBATTN_DATA``, else ``data``.
        seed: fixes the cuts, and nothing else.
        limit: keep at most this many training texts, and of the others the same fraction, but two at least.

    Raises:
        ValueError: an unknown name, or ``limit`` below 1.
        DatasetError: data that are missing, incomplete or damaged.
    """
    if name not in NAMES:
        raise ValueError(f"unknown data set of texts {name!r}: choose one of {', '.join(NAMES)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    folder, generator = data_root(root), torch.Generator().manual_seed(seed)
    if name == "cola":
        classes, (whole, test, outside) = cola.CLASSES, cola.read(folder)
        tenth = len(whole) // 10
        train, valid = split(whole, sizes=(len(whole) - tenth, tenth), generator=generator)
        domains = {"out-of-domain": outside}
    else:
        classes, domains = imdb.CLASSES, {}
        train, valid, test = split(imdb.read(folder), sizes=IMDB_SIZES, generator=generator)
    if limit is not None:
        fraction = min(1.0, limit / len(train))
        whole = train, valid, test, *domains.values()
        sizes = [min(limit, len(train)), *(max(2, round(fraction * len(part))) for part in whole[1:])]
        train, valid, test, *others = (
            split(part, sizes=(size,), generator=generator)[0] for part, size in zip(whole, sizes, strict=True)
        )
        domains = dict(zip(domains, others, strict=True))
    cut = tokens.fit(settings, train, cache=folder / ".probattn-cache")
    return TextDataset(name, classes, train, valid, test, cut, domains)


@functools.lru_cache(maxsize=8)
def _encoded(tokens: Tokens, texts: Texts) -> list[Tensor]:
    return tokens.encode(texts.texts)
