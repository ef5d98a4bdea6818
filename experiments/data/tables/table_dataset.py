"""Data sets of tables, for classes or for regression."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from probattn.experiments.data.batch_loader import BatchLoader
from probattn.experiments.data.dataset import Dataset, Part
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.option_types import Columns, Delimiter
from probattn.experiments.data.own.examples import class_indices, class_names, divide
from probattn.experiments.data.own.rows import check_columns, labelled_rows, read_parts
from probattn.experiments.data.tables.column_kinds import choose_features, find_columns
from probattn.experiments.data.tables.encoding import Column, Kind, TableEncoding
from probattn.experiments.data.tables.numbers import is_missing, readings


@dataclass(frozen=True, eq=False)
class Table(Part):
    """Labelled rows: ``features`` float32 (n, features), ``labels`` int64 (n,), or float32 (n, 1)
    for regression, and the n rows' ``cells`` in their file, or None; a selection has none."""

    features: Tensor
    labels: Tensor
    cells: pd.DataFrame | None = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False)
class TableDataset(Dataset):
    """A table.

    Attributes:
        encoding: encoding of the rows, fitted to ``train``.
        label_column: column of the labels.
        label_mean, label_std: of the training labels, for regression.
        columns: what the columns of the file hold (see :func:`~.column_kinds.find_columns`); None
            without data.
    """

    encoding: TableEncoding
    label_column: str
    label_mean: float = 0.0
    label_std: float = 1.0
    columns: pd.DataFrame | None = None

    def batches(self, table: Table, /, *, shuffle: bool = False, **options: Any) -> BatchLoader:
        """Return a loader of any rows: in their order, or shuffled, then with some unknown
        categories."""
        options["categories"] = torch.tensor(self.encoding.are_categories) if shuffle else None
        return BatchLoader(table.features, table.labels, shuffle=shuffle, **options)

    def preprocessing(self) -> dict[str, Any]:
        """Return the encoding of the columns, and the scale of the labels."""
        scale = {
            "label_column": self.label_column,
            "label_mean": self.label_mean,
            "label_std": self.label_std,
        }
        return {"kind": "table", **asdict(self.encoding), **scale}

    def unseen(self, part: Table) -> pd.DataFrame:
        """Return which cells of each row are unlike those of training, by column."""
        return self.encoding.unlike_training(part.features)


def read(
    path: Path,
    *,
    label_column: str = "label",
    group_column: str | None = None,
    task: Literal["classes", "regression"] = "classes",
    ignore_columns: Columns = (),
    categorical_columns: Columns = (),
    number_columns: Columns = (),
    decimal: Literal[".", ","] | None = None,
    day_first: bool | None = None,
    delimiter: Delimiter | None = None,
    **division: Any,
) -> TableDataset:
    """Read a table from one CSV file, or from the files of the parts in a folder.

    Args:
        path: as for :func:`~probattn.experiments.data.own.rows.read_parts`.
        label_column: column of the labels; all others are features.
        group_column: column of groups that stay in one part, such as patients; it is no feature.
        task: whether the labels are classes or numbers.
        ignore_columns: columns that are no features.
        categorical_columns: columns of numbers that stand for categories; the kind of others is
            found (see :func:`~.column_kinds.find_columns`).
        number_columns: columns of numbers, also where they only number the rows.
        decimal: decimal mark of the numbers; None finds it in each column.
        day_first: whether 01/02/2020 is in February; None finds it in each column.
        delimiter: what separates columns; None is a tab in ``.tsv`` files, else a comma.
        division: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: missing columns, no features, columns whose kind is unclear, or cells and
            labels that cannot be used.
    """
    parts = read_parts(path, kind="csv", delimiter=delimiter)
    is_regression = task == "regression"
    chosen: dict[str, Kind] = dict.fromkeys(ignore_columns, "ignored")
    chosen |= dict.fromkeys(categorical_columns, "category")
    chosen |= dict.fromkeys(number_columns, "number")
    if group_column:
        chosen[group_column] = "ignored"
    chosen[label_column] = "number" if is_regression else "category"
    for rows in parts.values():
        check_columns(rows, chosen)
    columns, description = find_columns(
        parts["train"],
        chosen=chosen,
        decimal=decimal,
        day_first=day_first,
        label_column=label_column,
    )
    features = choose_features(columns, description, label_column=label_column)
    label = columns[label_column]
    labelled = {
        role: _examples(rows, features, label, group_column) for role, rows in parts.items()
    }
    examples = divide(labelled, **division)
    tables = {}
    for role, part in examples.items():
        tables[role] = parts.get(role, parts["train"]).loc[part.index]
    classes = () if is_regression else class_names(examples["train"].label)
    if is_regression:
        unscaled = TableEncoding(
            (label,)
        )  # of mean 0 and standard deviation 1: the labels keep their units
        scale = _scale(label.fit(tables["train"][label.name]))
        labels = list(map(unscaled.features, tables.values()))
    else:
        scale = 0.0, 1.0
        labels = [class_indices(part.label, classes) for part in examples.values()]
    encoding = TableEncoding(tuple(column.fit(tables["train"][column.name]) for column in features))
    train, valid, test = map(Table, map(encoding.features, tables.values()), labels)
    test = replace(test, cells=tables["test"])
    return TableDataset(
        "table-csv", classes, train, valid, test, encoding, label.name, *scale, columns=description
    )


def _examples(
    rows: pd.DataFrame, features: Sequence[Column], label: Column, group_column: str | None
) -> pd.DataFrame:
    """Return the labels, keys and groups of rows; those of a regression have one label.

    Raises:
        DatasetError: missing labels, or many classes that are numbers.
    """
    missing = rows[label.name][rows[label.name].map(is_missing)]
    if len(missing):
        place, cell = next(iter(missing.items()))
        problem = (
            f"{place}: the label {label.name!r} is {cell!r}: {len(missing)} labels are missing"
        )
        raise DatasetError(f"{problem}; fill them in or remove their rows, or rename such a class")
    number = rows[label.name].nunique()
    if (
        label.kind == "category"
        and number > max(20, len(rows) / 4)
        and readings(list(rows[label.name]))
    ):
        raise DatasetError(
            f"{label.name!r} has {number:,} numbers: predict them with --set data.task=regression"
        )
    check_columns(rows, [column.name for column in features])
    values = pd.DataFrame({column.name: column.read(rows[column.name]) for column in features})
    keys = pd.util.hash_pandas_object(values, index=False).to_numpy()
    examples = labelled_rows(rows, keys, label.name, group_column).rename(columns={"input": "key"})
    return examples if label.kind == "category" else examples.assign(label="a number")


def _scale(label: Column) -> tuple[float, float]:
    """Return mean and standard deviation; refuse labels that differ by less than single precision
    can hold."""
    if abs(label.mean) > 1e5 * label.std:
        raise DatasetError(
            f"the labels in {label.name!r} differ too little for single precision: subtract a "
            "constant"
        )
    return label.mean, label.std
