"""Data sets of tables, for classes or for regression."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from torch import Tensor

from probattn.experiments.config.validation import Columns, Delimiter
from probattn.experiments.data.batch_loader import BatchLoader
from probattn.experiments.data.dataset import Dataset, Part
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import class_indices, class_names, divide
from probattn.experiments.data.own.rows import check_columns, names, read_parts
from probattn.experiments.data.tables.encoding import Column, Kind, TableEncoding, choose_features, find_columns
from probattn.experiments.data.tables.numbers import readings


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
        columns: what the columns of the file hold (see :func:`~.encoding.find_columns`); None without data.
    """

    encoding: TableEncoding
    label_column: str
    label_mean: float = 0.0
    label_std: float = 1.0
    columns: pd.DataFrame | None = None

    def batches(self, table: Table, /, **options: Any) -> BatchLoader:
        """Return a loader of any rows in their order."""
        return BatchLoader(table.features, table.labels, **options)

    def preprocessing(self) -> dict[str, Any]:
        """Return the encoding of the columns, and the scale of the labels."""
        scale = {"label_column": self.label_column, "label_mean": self.label_mean, "label_std": self.label_std}
        return {"kind": "table", **asdict(self.encoding), **scale}


def read(
    path: Path,
    *,
    label_column: str = "label",
    task: Literal["classes", "regression"] = "classes",
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
            :func:`~.encoding.find_columns`).
        number_columns: columns of numbers, also where they only number the rows.
        decimal: decimal mark of the numbers; None finds it in each column.
        delimiter: what separates columns; None is a tab in ``.tsv`` files, else a comma.
        division: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: missing columns, no features, columns whose kind is unclear, or cells and labels that cannot be
            used.
    """
    parts, is_regression = read_parts(path, kind="csv", delimiter=delimiter), task == "regression"
    chosen: dict[str, Kind] = dict.fromkeys(ignore_columns, "ignored")
    chosen |= dict.fromkeys(categorical_columns, "category")
    chosen |= dict.fromkeys(number_columns, "number")
    chosen[label_column] = "number" if is_regression else "category"
    for rows in parts.values():
        check_columns(rows, chosen)
    columns, description = find_columns(parts["train"], chosen=chosen, decimal=decimal)
    features, label = choose_features(columns, description, label_column=label_column), columns[label_column]
    examples = divide({role: _examples(rows, label) for role, rows in parts.items()}, **division)
    tables = [parts.get(role, parts["train"]).loc[labelled.index] for role, labelled in examples.items()]
    classes = () if is_regression else class_names(examples["train"].label)
    if is_regression:
        unscaled = TableEncoding((label,))  # of mean 0 and standard deviation 1: the labels keep their units
        scale, labels = _scale(label.fit(tables[0][label.name])), list(map(unscaled.features, tables))
    else:
        scale, labels = (0.0, 1.0), [class_indices(labelled.label, classes) for labelled in examples.values()]
    encoding = TableEncoding(tuple(column.fit(tables[0][column.name]) for column in features))
    train, valid, test = map(Table, map(encoding.features, tables), labels)
    return TableDataset("table-csv", classes, train, valid, test, encoding, label.name, *scale, columns=description)


def _examples(rows: pd.DataFrame, label: Column) -> pd.DataFrame:
    """Return the labels of rows; those of a regression have one label, so that they are divided at random.

    Raises:
        DatasetError: many classes that are numbers.
    """
    number = rows[label.name].nunique()
    if label.kind == "category" and number > max(20, len(rows) / 4) and readings(list(rows[label.name])):
        raise DatasetError(f"{label.name!r} has {number:,} numbers: predict them with --set data.task=regression")
    labels = names(rows, label.name) if label.kind == "category" else "a number"
    return pd.DataFrame({"label": labels}, index=rows.index)


def _scale(label: Column) -> tuple[float, float]:
    """Return mean and standard deviation; refuse labels that differ by less than single precision can hold."""
    if abs(label.mean) > 1e5 * label.std:
        raise DatasetError(f"the labels in {label.name!r} differ too little for single precision: subtract a constant")
    return label.mean, label.std
