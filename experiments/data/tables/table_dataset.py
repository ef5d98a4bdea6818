"""Data sets of tables, for classes or for regression."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from probattn.experiments.config.validation import Columns, Delimiter
from probattn.experiments.data.batch_loader import BatchLoader
from probattn.experiments.data.dataset import Dataset, Part
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import class_indices, class_names, divide
from probattn.experiments.data.own.rows import check_columns, names, read_parts, texts
from probattn.experiments.data.tables.columns import column_kinds, describe_columns, feature_notations
from probattn.experiments.data.tables.encoding import Column, TableEncoding
from probattn.experiments.data.tables.numbers import readings

Task = Literal["classes", "regression"]  # kinds of labels: names of classes, or numbers


@dataclass(frozen=True, eq=False)
class Table(Part):
    """Labelled rows: ``features`` float32 (n, features), ``labels`` int64 (n,), or float32 (n, 1) for regression."""

    features: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class TableDataset(Dataset):
    """A table.

    Attributes:
        encoding: encoding of the rows, fitted to ``train``.
        label_column: column of the labels.
        label_mean, label_std: of the training labels, for regression.
        columns: what the columns of the file hold (see :func:`~.columns.describe_columns`); None without data.
    """

    encoding: TableEncoding
    label_column: str
    label_mean: float = 0.0
    label_std: float = 1.0
    columns: pd.DataFrame | None = None

    def batches(self, table: Table, **options: Any) -> BatchLoader:
        """Return a loader of any rows in their order."""
        return BatchLoader(table.features, table.labels, **options)

    def preprocessing(self) -> dict[str, Any]:
        """Return the encoding of the columns, and the scale of the labels."""
        scale = {"label_column": self.label_column, "label_mean": self.label_mean, "label_std": self.label_std}
        return {"kind": "table", "columns": self.encoding.to_json(), **scale}


def read(
    path: Path,
    *,
    label_column: str = "label",
    task: Task = "classes",
    ignore_columns: Columns = (),
    categorical_columns: Columns = (),
    number_columns: Columns = (),
    decimal: Literal[".", ","] | None = None,
    delimiter: Delimiter | None = None,
    **division: Any,
) -> TableDataset:
    """Read a table from one CSV file, or from the files of the parts in a folder.

    Args:
        path: as for :func:`~probattn.experiments.data.own.rows.read_parts`.
        label_column: column of the labels; all others are features.
        task: whether the labels are classes or numbers.
        ignore_columns: columns that are no features.
        categorical_columns: columns of numbers that stand for categories; the kind of others is found (see
            :func:`~.columns.column_kinds`).
        number_columns: columns of numbers, also where they only number the rows.
        decimal: decimal mark of the numbers; None finds it in each column.
        delimiter: what separates columns; None is a tab in ``.tsv`` files, else a comma.
        division: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: missing columns, no features, columns whose kind is unclear, or cells and labels that cannot be
            used.
    """
    parts, is_regression = read_parts(path, kind="csv", delimiter=delimiter), task == "regression"
    cells = parts["train"]
    choices = {"ignore_columns": ignore_columns, "categorical_columns": categorical_columns}
    choices |= {"number_columns": number_columns, "label_column": [label_column]}
    check_columns(cells, **choices)
    words = ("ignored", "category", "number", "number" if is_regression else "category")
    chosen = {column: kind for kind, columns in zip(words, choices.values(), strict=True) for column in columns}
    kinds = column_kinds(cells, chosen=chosen, decimal=decimal)
    notations = feature_notations(cells, kinds, label_column=label_column, path=path)
    given = {}
    for part, rows in parts.items():
        labels = names(rows, label_column)
        if is_regression:  # a column of mean 0 and standard deviation 1: the labels keep their units
            labels = Column(label_column, kinds[label_column]).features(texts(rows, label_column), rows.index)[0]
        given[part] = pd.DataFrame({"input": rows.to_dict("records"), "label": labels}, index=rows.index)
    if not is_regression:
        values = set(given["train"].label)
        if len(values) > 20 and 4 * len(values) > len(cells) and readings(list(values)):
            raise DatasetError(
                f"{label_column!r} has {len(values):,} numbers: predict them with --set data.task=regression"
            )
    examples = divide(given, by_class=not is_regression, **division)
    train, columns = examples["train"], describe_columns(cells, kinds)
    encoding = TableEncoding.fit(train.input, notations=notations)
    features = [encoding.features(rows.input, rows.index) for rows in examples.values()]
    if is_regression:
        classes, scale = (), _scale(train.label, label_column)
        labels = [torch.tensor(rows.label.tolist(), dtype=torch.float32)[:, None] for rows in examples.values()]
    else:
        classes, scale = class_names(train.label), {}
        labels = [class_indices(rows.label, classes) for rows in examples.values()]
    tables = map(Table, features, labels)
    return TableDataset("table-csv", classes, *tables, encoding, label_column, **scale, columns=columns)


def _scale(labels: pd.Series, column: str) -> dict[str, float]:
    """Return mean and standard deviation; refuse equal labels, or differences that single precision cannot hold."""
    mean, std = fmean(labels), pstdev(labels)
    if not 1e-15 < std < 1e15 or abs(mean) > 1e5 * std:
        problem = f"the training labels in {column!r} have the mean {mean:.4g} and the standard deviation {std:.4g}"
        raise DatasetError(f"{problem}, too near for single precision: subtract a constant, or change their unit")
    return {"label_mean": mean, "label_std": std}
