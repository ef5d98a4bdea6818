"""Data sets of tables, for classes or for regression."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal, Self

import pandas as pd
import torch
from torch import Tensor

from probattn.experiments.data.batch_loader import TableLoader
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import Examples, class_indices, class_names, divide
from probattn.experiments.data.own.rows import read_parts
from probattn.experiments.data.sealed_files import digest, write_preprocessing
from probattn.experiments.data.tables.columns import column_kinds, describe_columns, feature_notations
from probattn.experiments.data.tables.encoding import Column, TableEncoding
from probattn.experiments.data.tables.numbers import readings

Task = Literal["classes", "regression"]
"""Kinds of labels: names of classes, or numbers."""


@dataclass(frozen=True, eq=False)
class Table:
    """Labelled rows: ``features`` float32 (n, features), ``labels`` int64 (n,), or float32 (n, 1) for regression."""

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
        columns: what the columns of the file hold (see :func:`~.columns.describe_columns`); None without data.
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
    columns: pd.DataFrame | None = None

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
        content |= {"columns": self.encoding.to_json(), "label_mean": self.label_mean, "label_std": self.label_std}
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
    ignore_columns: Collection[str] = (),
    categorical_columns: Collection[str] = (),
    number_columns: Collection[str] = (),
    decimal: str | None = None,
    delimiter: str | None = None,
    **division: Any,
) -> TableDataset:
    """Read a table from one CSV file, or from the files of the parts in a folder.

    Args:
        path, delimiter: as for :func:`~probattn.experiments.data.own.rows.read_parts`.
        name: name of the data set.
        label_column: column of the labels; all others are features.
        task: ``classes`` for names, ``regression`` for numbers.
        ignore_columns, categorical_columns, number_columns: columns that are no features, categories, or numbers; the
            kind of others is found (see :func:`~.columns.column_kinds`).
        decimal: decimal mark of the numbers; None finds it in each column.
        division: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: missing columns, no features, columns whose kind is unclear, or cells and labels that cannot be
            used.
    """
    parts, is_regression = read_parts(path, kind="csv", delimiter=delimiter), task == "regression"
    chosen = {"ignore_columns": ignore_columns, "categorical_columns": categorical_columns}
    for setting, columns in (chosen | {"label_column": [label_column], "number_columns": number_columns}).items():
        for column in columns:
            parts["train"].check_columns(**{setting: column})
    cells = parts["train"].cells
    numbers = {*number_columns, *([label_column] if is_regression else [])}
    categories = {*categorical_columns, *([] if is_regression else [label_column])}
    kinds = column_kinds(cells, numbers=numbers, categories=categories, ignore=ignore_columns, decimal=decimal)
    notations = feature_notations(cells, kinds, label_column=label_column, path=path)
    given = {part: Examples(rows.rows, rows.labels(label_column), rows.places) for part, rows in parts.items()}
    if is_regression:  # their mean is 0 and their standard deviation 1 here: the labels keep their units
        label = Column(label_column, kinds[label_column])
        given = {
            part: replace(group, labels=label.features(group.labels, group.places)[0]) for part, group in given.items()
        }
    else:
        _check_classes(given["train"], label_column)
    examples = divide(given, by_class=not is_regression, **division)
    train, classes, scale = examples["train"], (), {}
    if is_regression:
        scale = {"label_mean": fmean(train.labels), "label_std": pstdev(train.labels)}
        _check_scale(label_column, *scale.values())
        labels = {part: torch.tensor(group.labels, dtype=torch.float32)[:, None] for part, group in examples.items()}
    else:
        classes = class_names(train)
        labels = {part: class_indices(group, classes) for part, group in examples.items()}
    encoding = TableEncoding.fit(train.inputs, notations=notations)
    features = {part: encoding.features(group.inputs, group.places) for part, group in examples.items()}
    tables = {part: Table(features[part], labels[part]) for part in examples}
    columns = describe_columns(cells, kinds)
    return TableDataset(name, classes, encoding, label_column, **tables, **scale, columns=columns)


def _check_classes(train: Examples, column: str) -> None:
    """Refuse numbers of regression as classes."""
    names = set(train.labels)
    if len(names) > 20 and 4 * len(names) > len(train) and readings(list(names)):
        raise DatasetError(
            f"{column!r} has {len(names):,} different numbers in {len(train):,} rows: predict them as numbers with "
            "--set data.task=regression"
        )


def _check_scale(column: str, mean: float, std: float) -> None:
    """Refuse labels of a regression that are all equal, or whose differences single precision cannot hold."""
    if not 1e-15 < std < 1e15 or abs(mean) > 1e5 * std:
        raise DatasetError(
            f"the training labels in {column!r} have the mean {mean:.4g} and the standard deviation {std:.4g}, which "
            "single precision cannot tell apart: subtract a constant, or change their unit"
        )
