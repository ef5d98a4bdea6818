"""Summary of the data that were read: `train` prints it, a run keeps it, and the report opens with
it."""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from typing import Any

import pandas as pd

from probattn.experiments.data.dataset import Dataset
from probattn.experiments.data.tables.numbers import is_missing

# Logger of all readers, whose notes on what they do are of level INFO.
_log = logging.getLogger("probattn.experiments.data")
_log.setLevel(logging.INFO)
# Number of classes that are listed: the most frequent ones.
MAX_CLASSES = 20
# Classes with fewer training examples are named.
FEW_EXAMPLES = 3


@dataclass(frozen=True)
class Summary:
    """Content of a data set, as it was read.

    Attributes:
        counts: numbers of examples: a row for each class and one for all, a column for each part.
        notes: sentences on what was left out, is rare, cut, unknown, twice or in two parts.
        columns: what each column of a table holds; None for images and texts.
        repeated: number of test examples whose input is also a training example's.
    """

    counts: pd.DataFrame
    notes: tuple[str, ...]
    columns: pd.DataFrame | None
    repeated: int

    def __str__(self) -> str:
        tables = [self.counts] if self.columns is None else [self.columns, self.counts]
        return "\n".join([*(table.to_string(index=False) for table in tables), *self.notes])


@contextlib.contextmanager
def collect_notes() -> Iterator[list[str]]:
    """Collect what readers of data log, each message once; the list is filled at the end."""
    notes = list[str]()
    handler = BufferingHandler(capacity=10**9)
    _log.addHandler(handler)
    try:
        yield notes
    finally:
        _log.removeHandler(handler)
        messages = Counter(record.getMessage() for record in handler.buffer)
        for message, count in messages.items():
            notes.append(f"{message} ({count:,} times)" if count > 1 else message)


def summarise(dataset: Dataset) -> Summary:
    """Return the summary of a data set."""
    parts = {"training": dataset.train, "validation": dataset.valid, "test": dataset.test}
    with collect_notes() as logged:
        unseen = {name: dataset.unseen(part) for name, part in parts.items()}
    notes = [*dataset.notes, *logged]
    for name, shares in unseen.items():
        for kind, share in shares.mean()[shares.any()].items():
            number = f"{(shares[kind] > 0).sum():,} of {len(shares):,} examples"
            notes.append(f"{name} part: {kind}: {share:.1%} on average, {number}")
    examples = pd.concat([_examples(name, part, dataset.classes) for name, part in parts.items()])
    counts = pd.crosstab(examples["class"], examples["part"])[[*parts]]
    for name, count in counts["training"].items():
        if is_missing(name):
            notes.append(f"class {name!r} looks like a missing label: {count:,} training examples")
    rare = counts.index[counts["training"] < FEW_EXAMPLES]
    if len(rare):
        listed = ", ".join(map(repr, rare))
        notes.append(f"classes with fewer than {FEW_EXAMPLES} training examples: {listed}")
    repeated = _repeated(examples, notes)
    # Numbers to predict have no classes: only all of them are counted.
    listed = counts.nlargest(MAX_CLASSES if dataset.classes else 0, "training")
    table = pd.concat([listed, counts.sum().to_frame("all").T])
    table.insert(0, "share", [f"{count / len(dataset.train):.1%}" for count in table["training"]])
    table = table.rename_axis("class" if dataset.classes else "examples").reset_index()
    return Summary(table, tuple(notes), getattr(dataset, "columns", None), repeated)


def _examples(name: str, part: Any, classes: tuple[str, ...]) -> pd.DataFrame:
    """Return part, key, label and class of each example; labels that are no class are a
    "number"."""
    labels = part.labels.tolist()
    has_classes = len(classes) > 0 and part.labels.ndim == 1
    named = [classes[label] for label in labels] if has_classes else "number"
    columns = {"part": name, "key": part.keys, "label": list(map(str, labels)), "class": named}
    return pd.DataFrame(columns)


def _repeated(examples: pd.DataFrame, notes: list[str]) -> int:
    """Return how many test examples are also training examples; add notes on equal inputs."""
    sizes = examples["part"].value_counts()
    keys = examples["key"]
    is_train = examples["part"] == "training"
    copies = examples["part"][keys.isin(keys[is_train])].value_counts()
    for name, count in copies.drop("training").items():
        share = f"{count:,} of {sizes[name]:,} {name} examples ({count / sizes[name]:.1%})"
        notes.append(
            f"warning: {share} have the input of a training example: they test nothing new"
        )
    if count := keys[is_train].duplicated().sum():
        notes.append(f"{count:,} training examples repeat the input of another one")
    if count := (examples.groupby("key")["label"].transform("nunique") > 1).sum():
        notes.append(f"warning: {count:,} examples have the input of an example with another label")
    return int(copies.get("test", 0))
