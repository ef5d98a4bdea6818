"""Summary of the data that were read: `train` prints it, a run's folder keeps it, and the report opens with it."""

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


@contextlib.contextmanager
def collect_notes() -> Iterator[list[str]]:
    """Collect what readers of data log, each message once; the list is filled at the end."""
    notes, handler = list[str](), BufferingHandler(capacity=10**9)
    _log.addHandler(handler)
    try:
        yield notes
    finally:
        _log.removeHandler(handler)
        messages = Counter(record.getMessage() for record in handler.buffer)
        notes += [f"{message} ({count:,} times)" if count > 1 else message for message, count in messages.items()]


def summarise(dataset: Dataset) -> Summary:
    """Return the summary of a data set."""
    parts = {"training": dataset.train, "validation": dataset.valid, "test": dataset.test}
    with collect_notes() as notes:
        unseen = {name: dataset.unseen(part).astype(float) for name, part in parts.items()}
    examples = pd.concat({name: _examples(part, dataset.classes) for name, part in parts.items()}, names=["part", None])
    examples = examples.reset_index("part")
    counts = pd.crosstab(examples["class"], examples["part"])[[*parts]]
    notes = [*dataset.notes, *notes]
    for name, shares in unseen.items():
        for kind, share in shares.mean().items():
            if share > 0:
                count = int((shares[kind] > 0).sum())
                notes.append(f"{name} part: {kind}: {share:.1%} on average, {count:,} of {len(shares):,} examples")
    if rare := [f"{name!r} ({count})" for name, count in counts["training"].items() if count < FEW_EXAMPLES]:
        notes.append(f"classes with fewer than {FEW_EXAMPLES} training examples: {', '.join(rare)}")
    if missing := [name for name in dataset.classes if is_missing(name)]:
        notes.append(f"classes that look like missing labels: {', '.join(map(repr, missing))}")
    repeated = _repeated(examples, notes)
    table = pd.concat([counts.nlargest(MAX_CLASSES, "training"), counts.sum().to_frame("all").T])
    table.insert(0, "share", [f"{count / len(dataset.train):.1%}" for count in table["training"]])
    table = table.rename_axis("class").reset_index()
    return Summary(table, tuple(notes), getattr(dataset, "columns", None), repeated)


def _examples(part: Any, classes: tuple[str, ...]) -> pd.DataFrame:
    """Return the key, the label and the name of the class of each example; "number" for labels that are no classes."""
    labels = part.labels.tolist()
    names = [classes[label] for label in labels] if classes and part.labels.ndim == 1 else "number"
    return pd.DataFrame({"key": part.keys, "label": list(map(str, labels)), "class": names})


def _repeated(examples: pd.DataFrame, notes: list[str]) -> int:
    """Return how many test examples are also training examples; add notes on equal inputs."""
    keys = dict(iter(examples.groupby("part")["key"]))
    repeats = {name: int(keys[name].isin(keys["training"]).sum()) for name in ("validation", "test")}
    for name, count in repeats.items():
        if count:
            share = f"{count:,} of {len(keys[name]):,} {name} examples ({count / len(keys[name]):.1%})"
            notes.append(f"warning: {share} have the input of a training example: they do not test new inputs")
    if copies := int(keys["training"].duplicated().sum()):
        notes.append(f"{copies:,} training examples repeat the input of another one")
    labels = examples.groupby("key")["label"].nunique()
    if conflicts := int(examples["key"].isin(labels.index[labels > 1]).sum()):
        notes.append(f"warning: {conflicts:,} examples have the input of an example with another label")
    return repeats["test"]
