"""Summary of the data that were read, which `train` prints, a run's folder keeps, and the report opens with."""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probattn.experiments.data.dataset import Dataset
from probattn.experiments.data.tables.numbers import is_missing

# Number of classes that the summary lists; of more it lists the most frequent ones.
MAX_CLASSES = 20
# Classes with fewer training examples are named.
FEW_EXAMPLES = 3
SUMMARY = "data.txt"  # in a run's folder


@dataclass(frozen=True)
class Summary:
    """What a data set holds.

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
        tables = [table.to_string(index=False) for table in (self.columns, self.counts) if table is not None]
        return "\n".join([*tables, *self.notes])


class _Notes(logging.Handler):
    """Handler that counts the messages of readers."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages[record.getMessage()] += 1


@contextlib.contextmanager
def collect_notes() -> Iterator[list[str]]:
    """Collect what readers log, each message once; the list is filled at the end."""
    notes: list[str] = []
    handler, log = _Notes(), logging.getLogger("probattn.experiments.data")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield notes
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        for message, count in handler.messages.items():
            notes.append(f"{message} ({count:,} times)" if count > 1 else message)


def summarise(dataset: Dataset) -> Summary:
    """Return the summary of a data set."""
    parts = {"training": dataset.train, "validation": dataset.valid, "test": dataset.test}
    with collect_notes() as logged:
        checks = dataset.checks()
    repeats, repeated = _repeats(parts)
    notes = [*dataset.notes, *logged, *_classes(dataset), *checks, *repeats]
    return Summary(_counts(dataset.classes, parts), tuple(notes), getattr(dataset, "columns", None), repeated)


def _counts(classes: tuple[str, ...], parts: dict[str, Any]) -> pd.DataFrame:
    """Return the table of the numbers of examples."""
    total = pd.DataFrame({name: [len(part)] for name, part in parts.items()}, index=["all"])
    counts = pd.DataFrame(index=list(classes))
    for name, part in parts.items():
        counts[name] = part.labels.bincount(minlength=len(classes)).tolist() if classes else []
    listed = counts if len(counts) <= MAX_CLASSES else counts.nlargest(MAX_CLASSES, "training")
    table = pd.concat([listed, total])
    shares = table["training"] / len(parts["training"])
    table.insert(0, "share", [f"{share:.1%}" for share in shares])
    return table.rename_axis("class").reset_index()


def _classes(dataset: Dataset) -> Iterator[str]:
    """Yield sentences on classes that are not listed, are rare, or look like missing labels."""
    if not dataset.classes:
        return
    if len(dataset.classes) > MAX_CLASSES:
        yield f"{len(dataset.classes):,} classes, of which the table has the most frequent"
    counts = dataset.train.labels.bincount(minlength=len(dataset.classes)).tolist()
    rare = [f"{name!r} ({count})" for name, count in zip(dataset.classes, counts, strict=True) if count < FEW_EXAMPLES]
    if rare:
        yield f"classes with fewer than {FEW_EXAMPLES} training examples: {', '.join(rare)}"
    if missing := [name for name in dataset.classes if is_missing(name)]:
        yield f"classes that look like missing labels: {', '.join(map(repr, missing))}"


def _repeats(parts: dict[str, Any]) -> tuple[list[str], int]:
    """Return sentences on equal inputs, and the number of test examples that are also training examples."""
    frames = [
        pd.DataFrame({"part": name, "key": part.keys, "label": list(map(str, part.labels.tolist()))})
        for name, part in parts.items()
    ]
    examples = pd.concat(frames)
    keys = dict(iter(examples.groupby("part").key))
    notes = []
    for first, second in (("training", "validation"), ("training", "test"), ("validation", "test")):
        number = int(keys[second].isin(keys[first]).sum())
        if number:
            share = number / len(keys[second])
            place = f"{number:,} of {len(keys[second]):,} {second} examples ({share:.1%})"
            notes.append(f"warning: {place} have the input of a {first} example: they are no test of new inputs")
    if copies := int(keys["training"].duplicated().sum()):
        notes.append(f"{copies:,} training examples repeat the input of another one")
    labels = examples.groupby("key").label.nunique()
    if conflicts := int(examples.key.isin(labels.index[labels > 1]).sum()):
        notes.append(f"warning: {conflicts:,} examples have the input of an example with another label")
    return notes, int(keys["test"].isin(keys["training"]).sum())
