"""Data sets of tables, for classes or for regression."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, pstdev
from typing import Literal, Self

import torch
from torch import Tensor

from probattn.experiments.data.digest import digest
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import Examples, Shares, class_indices, class_names, divide, shorten
from probattn.experiments.data.own.rows import read_parts
from probattn.experiments.data.preprocessing import write_preprocessing
from probattn.experiments.data.tables.encoding import LARGEST, TableEncoding, number
from probattn.experiments.data.tables.loader import TableLoader

Task = Literal["classes", "regression"]
"""Kinds of labels: names of classes, or numbers."""


@dataclass(frozen=True, eq=False)
class Table:
    """Labelled rows: ``features`` float32 (n, columns), ``labels`` int64 (n,), or float32 (n, 1) for regression."""

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def digest(self) -> str:
        """Digest of the features and labels, computed once."""
        return digest((self.features, self.labels))

    def select(self, indices: Tensor) -> Self:
        """Return the rows at ``indices``, int64 (m,), in that order."""
        return type(self)(self.features[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class TableDataset:
    """A table with training, validation and test part.

    Attributes:
        name: name of the data set.
        classes: names, in the order of the labels; empty for regression.
        encoding: encoding of the rows, fitted to ``train``.
        label_column: column of the labels.
        train, valid, test: disjoint parts.
        label_mean, label_std: of the training labels, for regression.
        domains: test sets of other domains; none.
    """

    name: str
    classes: tuple[str, ...]
    encoding: TableEncoding
    label_column: str
    train: Table
    valid: Table
    test: Table
    label_mean: float = 0.0
    label_std: float = 1.0
    domains: Mapping[str, Table] = field(default_factory=dict)

    def training(self, *, batch_size: int, generator: torch.Generator, device: str = "cpu") -> TableLoader:
        """Return the loader of training batches, in random order."""
        options = {"batch_size": batch_size, "shuffle": True, "generator": generator, "device": device}
        return TableLoader(self.train.features, self.train.labels, **options)

    def sample(self, size: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return one batch of ``size`` random training rows."""
        chosen = self.train.select(torch.randperm(len(self.train), generator=generator)[:size])
        return chosen.features, chosen.labels

    def batches(self, table: Table, *, batch_size: int, device: str = "cpu") -> TableLoader:
        """Return a loader of any rows in their order."""
        return TableLoader(table.features, table.labels, batch_size=batch_size, device=device)

    def save_preprocessing(self, folder: Path) -> None:
        """Write ``preprocessing.json`` into a run's folder, unless it is there already."""
        content = {"kind": "table", "classes": self.classes, "label_column": self.label_column}
        content |= {"columns": self.encoding.to_json()}
        if not self.classes:
            content |= {"label_mean": self.label_mean, "label_std": self.label_std}
        write_preprocessing(folder, content)

    def for_run(self, folder: Path) -> "TableDataset":
        """Return the data set as the run in ``folder`` reads it: this one, fitted to the same training part."""
        return self


def read(
    path: Path,
    *,
    name: str,
    label_column: str,
    task: Task,
    ignore_columns: Collection[str],
    categorical_columns: Collection[str],
    delimiter: str | None,
    shares: Shares,
    seed: int,
    limit: int | None,
) -> TableDataset:
    """Read a table from one CSV file, or from the files ``train``, ``valid`` and ``test`` of a folder.

    Args:
        path, delimiter: as for :func:`~probattn.experiments.data.own.rows.read_parts`.
        name: name of the data set.
        label_column: column of the labels; all others are features.
        task: ``classes`` for names, ``regression`` for numbers.
        ignore_columns: columns that are no features, such as an identifier.
        categorical_columns: columns whose numbers are names of categories.
        shares, seed, limit: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: missing columns, no features, cells or labels that cannot be used; names file and line.
    """
    given = {}
    for part, rows in read_parts(path, kind="csv", delimiter=delimiter).items():
        rows.check_columns(label_column=label_column)
        for setting, columns in {"ignore_columns": ignore_columns, "categorical_columns": categorical_columns}.items():
            for column in columns:
                rows.check_columns(**{setting: column})
        given[part] = Examples(rows.rows, rows.text(label_column), rows.places)
        names = [column for column in rows.columns if column != label_column and column not in ignore_columns]
        if not names:
            raise DatasetError(f"{rows.path} has no columns besides {shorten(rows.columns)}; a table needs features")
    if task == "classes":
        _check_classes(given["train"], label_column)
    parts = divide(given, shares=shares, seed=seed, limit=limit, by_class=task == "classes")
    train = parts["train"]
    encoding = TableEncoding.fit(train.inputs, train.places, names=names, categories=categorical_columns)
    if task == "classes":
        classes, mean, std = class_names(train), 0.0, 1.0
        labels = {part: class_indices(each, classes) for part, each in parts.items()}
    else:
        numbers = {part: _numbers(each, label_column) for part, each in parts.items()}
        classes, mean, std = (), fmean(numbers["train"]), pstdev(numbers["train"])
        _check_scale(label_column, mean, std)
        labels = {part: torch.tensor(each, dtype=torch.float32)[:, None] for part, each in numbers.items()}
    tables = {part: Table(encoding.features(each.inputs, each.places), labels[part]) for part, each in parts.items()}
    return TableDataset(name, classes, encoding, label_column, **tables, label_mean=mean, label_std=std)


def _check_classes(train: Examples, column: str) -> None:
    """Refuse numbers of regression as classes."""
    names = set(train.labels)
    if len(names) > 20 and 4 * len(names) > len(train) and all(number(name) is not None for name in names):
        raise DatasetError(
            f"{column!r} has {len(names):,} different numbers in {len(train):,} rows: predict them as numbers with "
            "--set data.task=regression"
        )


def _check_scale(column: str, mean: float, std: float) -> None:
    """Refuse labels of a regression that are all equal, or whose differences single precision cannot hold."""
    if std == 0:
        raise DatasetError(f"all training labels in {column!r} are {mean}: there is nothing to learn")
    if not 1e-15 < std < 1e15 or abs(mean) > 1e5 * std:
        raise DatasetError(
            f"the training labels in {column!r} have the mean {mean:.4g} and the standard deviation {std:.4g}, too "
            "large, too small or too close together for single precision: subtract a constant, or change their unit"
        )


def _numbers(examples: Examples, column: str) -> Sequence[float]:
    values = [number(label) for label in examples.labels]
    for value, label, place in zip(values, examples.labels, examples.places, strict=True):
        if value is None:
            raise DatasetError(f"{place}: {column!r} is {label!r}, expected a number (at most {LARGEST:g})")
    return values
