"""Text data sets: CoLA and IMDB, split by a seed, with tokens fitted to the training part only."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Self

import pandas as pd
from torch import Tensor

from probattn.experiments.data.batch_loader import TextLoader
from probattn.experiments.data.dataset import Dataset, Root, data_root, read_preprocessing
from probattn.experiments.data.text import corpora
from probattn.experiments.data.text.encoders import PretrainedEncoder
from probattn.experiments.data.text.labelled_texts import Texts, well_formed
from probattn.experiments.data.text.word_tokenizer import WordTokenizer

NAMES = tuple(corpora.CLASSES)  # of :func:`load`
IMDB_SIZES = (
    5_000,
    10_000,
)  # of the validation and test part, as in the KEP-SVGP paper (appendix D.1)
Encoder = WordTokenizer | PretrainedEncoder  # conversions of texts to tensors


@dataclass(frozen=True, eq=False)
class TextDataset(Dataset):
    """A text data set; a sentence that a corpus holds twice may be in two of its parts.

    Attributes:
        kind: class of the tokenizer or encoder.
        make: returns it, fitted to ``train``, when it is first used.
    """

    kind: type[Encoder]
    make: Callable[[], Encoder]

    @cached_property
    def tokens(self) -> Encoder:
        """The tokenizer or encoder."""
        return self.make()

    def batches(self, texts: Texts, /, **options: Any) -> TextLoader:
        """Return a loader of texts in their order, by their length, or of similar length (see
        :class:`TextLoader`)."""
        return TextLoader(_encode(self.tokens, texts), texts.labels, **options)

    def preprocessing(self) -> dict[str, Any]:
        """Return the tokenizer or encoder."""
        return {"kind": "texts", "tokens": self.tokens.to_json()}

    def unseen(self, part: Texts) -> pd.DataFrame:
        """Return which share of each text's tokens is cut, and which of the others is unknown."""
        pipeline = self.tokens.pipeline
        unknown = pipeline.token_to_id(getattr(pipeline.model, "unk_token", None) or "")
        rows = []
        for encoding in pipeline.encode_batch(well_formed(part.texts)):
            length = len(encoding.ids)
            cut = sum(part.special_tokens_mask.count(0) for part in encoding.overflowing)
            rows.append((cut / (length + cut), encoding.ids.count(unknown) / length))
        return pd.DataFrame(rows, columns=["tokens cut at network.max_length", "tokens unknown"])

    def for_run(self, folder: Path) -> Self:
        """Return the data set as the run in ``folder`` reads it: with its tokens.

        Raises:
            DatasetError: the run's tokens are missing or damaged.
        """
        return replace(
            self, make=partial(self.kind.from_json, read_preprocessing(folder)["tokens"])
        )


def load(
    name: str, network: Any, *, root: Root = None, seed: int = 0, limit: int | None = None
) -> TextDataset:
    """Load a text data set, split off its validation part, and fit the tokens to the training part.

    ``cola``: a tenth of the in-domain training sentences is the validation part, stratified by
    class; the in-domain development sentences are the test part, the out-of-domain ones the domain
    ``out-of-domain``. ``imdb``: all reviews, split 35,000 / 5,000 / 10,000 at random, stratified,
    as in the paper; because of duplicates, 65 validation and 103 test reviews (seed 0) are also in
    the training part.

    Args:
        name: one of :data:`NAMES`.
        network: settings of the network, which has those of the tokens.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        seed, limit: as for :func:`~probattn.experiments.data.dataset.Part.divide`.

    Raises:
        DatasetError: the data are missing, incomplete or damaged.
    """
    train, *tests = corpora.read(name, data_root(root))
    sizes = [len(train) // 10] if tests else IMDB_SIZES
    parts = train.divide(*tests[:1], sizes=sizes, classes=2, seed=seed, limit=limit)
    domains = {"out-of-domain": tests[1]} if tests else {}
    options = {"network": network, "domains": domains, "letters": False}
    return from_parts(name, corpora.CLASSES[name], *parts, **options)


def from_parts(
    name: str,
    classes: tuple[str, ...],
    *parts: Texts,
    network: Any,
    letters: bool = True,
    **options: Any,
) -> TextDataset:
    """Return the data set of three parts, with tokens fitted to the first.

    Args:
        name, classes, parts, options: of :class:`TextDataset`.
        network: as for :func:`load`.
        letters: as for :meth:`WordTokenizer.fit`; by letters are other words than the papers'.
    """
    kind: type[Encoder]
    make: Callable[[], Encoder]
    if network.kind == "encoder":
        kind = PretrainedEncoder
        make = partial(PretrainedEncoder.load, network.encoder, max_length=network.max_length)
    else:
        kind = WordTokenizer
        named = ("max_length", "min_count", "max_words", "spelling")
        limits = {name: getattr(network, name) for name in named}
        make = partial(WordTokenizer.fit, parts[0].texts, letters=letters, **limits)
    train, valid, test = parts
    return TextDataset(name, classes, train, valid, test, kind, make, **options)


@lru_cache(maxsize=8)
def _encode(tokens: Encoder, texts: Texts) -> list[Tensor]:
    return tokens.encode_batch(well_formed(texts.texts))
