"""Columns of a table: their kinds and notations, and their encoding as numbers, fitted to the training part."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from pydantic import TypeAdapter
from torch import Tensor

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import normal_name, shorten
from probattn.experiments.data.tables.numbers import Notation, is_missing, readings

# Kinds of columns. Features are the first two; the data's owner may choose the first three, the others are found.
Kind = Literal["number", "category", "ignored", "empty", "numbers the rows", "unclear"]
FEATURES = "number", "category"


@dataclass(frozen=True)
class Column:
    """Column of a table: of numbers, which become ``(number - mean) / std``, or of categories, which become codes.

    A missing number is the mean, and a second feature says that it is missing, if numbers of the training part are.

    Attributes:
        name: name of the column.
        kind: ``number``, ``category``, or why it is no feature.
        notation: notation of its numbers.
        mean, std, missing: of the training part's numbers: mean, standard deviation, and whether some are missing.
        values: categories, of which entry i has the code i + 1; others have the code 0.
    """

    name: str
    kind: Kind = "number"
    notation: Notation = Notation()
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False
    values: tuple[str, ...] = ()

    @property
    def sizes(self) -> list[int | None]:
        """Number of codes of each of its features; None for numbers."""
        return [len(self.values) + 1] if self.kind == "category" else [None, 2] if self.missing else [None]

    def fit(self, cells: pd.Series) -> Self:
        """Return the column fitted to the cells of the training part."""
        if self.kind == "category":
            return replace(self, values=tuple(sorted(set(map(_category, cells)))))
        numbers = self.notation.read(cells)
        present = numbers[np.isfinite(numbers)].tolist() or [0.0]
        return replace(self, mean=fmean(present), std=pstdev(present) or 1.0, missing=bool(np.isnan(numbers).any()))

    def features(self, cells: pd.Series) -> list[np.ndarray]:
        """Return one or two features of each cell; raise DatasetError for a cell that is no number of the notation."""
        if self.kind == "category":
            return [pd.Index(self.values).get_indexer(cells.map(_category)) + 1]
        numbers = self.notation.read(cells)
        invalid = np.isinf(numbers) | (np.isnan(numbers) & (not self.missing))
        if invalid.any():
            problem = f"{cells.index[invalid][0]}: {self.name!r} is {cells[invalid].iloc[0]!r}, in a column of numbers"
            raise DatasetError(f"{problem}; correct it, remove the row, or add the column to data.categorical_columns")
        scaled = np.nan_to_num((numbers - self.mean) / self.std)
        return [scaled, np.isnan(numbers)] if self.missing else [scaled]


@dataclass(frozen=True)
class TableEncoding:
    """Encoding of rows as features ``(n, features)``: standardised numbers and codes of categories."""

    columns: tuple[Column, ...]

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Number of codes of each feature; None for numbers."""
        return tuple(size for column in self.columns for size in column.sizes)

    def features(self, rows: pd.DataFrame) -> Tensor:
        """Return the features of rows, float32 ``(n, features)``.

        Args:
            rows: cells by column, indexed by their place, such as file and line.

        Raises:
            DatasetError: a missing column, or a cell that is no number in a column of numbers; names file and line.
        """
        features: list[np.ndarray] = []
        for column in self.columns:
            if column.name not in rows:
                raise DatasetError(f"{rows.index[0]}: there is no column {column.name!r}")
            features += column.features(rows[column.name])
        return torch.from_numpy(np.stack(features, axis=1).astype(np.float32))

    @classmethod
    def from_json(cls, columns: Sequence[Mapping[str, Any]]) -> Self:
        """Read columns back from ``preprocessing.json``."""
        return cls(TypeAdapter(tuple[Column, ...]).validate_python(columns))


def find_columns(
    cells: pd.DataFrame, *, chosen: Mapping[str, Kind], decimal: str | None = None
) -> tuple[dict[str, Column], pd.DataFrame]:
    """Return the columns of a table by name, with their kind and the notation of their numbers, and a description.

    A column has numbers if all cells that are not missing have one notation: decimal mark, currency and unit. It is
    unclear if half of them are numbers, or if it may be one of thousands: ``1.234`` and ``999``. The description has
    a row for each column: kind, range of the numbers or number of values, share of missing cells, an example.

    Args:
        cells: texts by column.
        chosen: kinds that the data's owner has chosen: ``number``, ``category`` or ``ignored``.
        decimal: decimal mark, ``"."`` or ``","``; None finds it.
    """
    numeric = [name for name in cells if chosen.get(name, "number") == "number"]
    possible = {name: readings(list(cells[name]), decimal=decimal) for name in numeric}
    uses_commas = any([notation.decimal for notation in reading] == [","] for reading in possible.values())
    columns, description = {}, []
    for name in cells:
        use, reading = chosen.get(name), possible.get(name, {})
        present = [cell for cell in cells[name] if not is_missing(cell)]
        notation = _choose(reading, present, uses_commas=uses_commas)
        if use is None:
            use = _kind(name, present, None if notation is None else reading.get(notation))
        elif use == "number" and notation is None:  # without any, the cell that is no number is named later
            use, notation = "unclear" if reading else "number", Notation(decimal or ".")
        columns[name] = Column(name, use, notation or Notation())
        numbers = columns[name].notation.read(present if use == "number" else [])
        numbers = numbers[np.isfinite(numbers)]
        extent = f"{numbers.min():.6g} to {numbers.max():.6g}" if numbers.size else f"{len(set(present))} different"
        description.append((name, use, extent, f"{1 - len(present) / len(cells):.0%}", (present or [""])[0][:30]))
    return columns, pd.DataFrame(description, columns=["column", "kind", "range", "missing", "example"])


def choose_features(columns: Mapping[str, Column], table: pd.DataFrame, *, label_column: str) -> list[Column]:
    """Return the columns that are features.

    Args:
        columns, table: of :func:`find_columns`.
        label_column: name of the column of the labels.

    Raises:
        DatasetError: a column is unclear, or none is a feature; the message has the table of all columns.
    """
    features = [column for name, column in columns.items() if column.kind in FEATURES and name != label_column]
    unclear = [name for name, column in columns.items() if column.kind == "unclear"]
    if unclear or not features:
        problem = f"the cells of {shorten(unclear)} are not all numbers of one notation" if unclear else "no features"
        settings = "data.number_columns=A,B, data.categorical_columns, data.ignore_columns or data.decimal"
        raise DatasetError(f"{problem}; the columns are:\n{table.to_string(index=False)}\nChoose with --set {settings}")
    return features


def _choose(possible: Mapping[Notation, np.ndarray], cells: Sequence[str], *, uses_commas: bool) -> Notation | None:
    """Return the notation of numbers; that of ``1,234`` is a comma of thousands, that of ``1.234`` may be unclear."""
    if len(possible) < 2:
        return next(iter(possible), None)
    (point, numbers), (comma, others) = possible.items()
    if uses_commas:
        return comma
    scales = numbers[others != 0] / others[others != 0]
    is_clear = np.nanmax(scales) < 2 * np.nanmin(scales) or any("," in cell for cell in cells)
    return point if is_clear else None


def _kind(name: str, cells: Sequence[str], numbers: np.ndarray | None) -> Kind:
    """Return the kind of a column by its cells that are not missing, and by its numbers, if all are.

    An index without a name, and whole numbers that follow each other in any order, number the rows.
    """
    if not cells:
        return "empty"
    if numbers is None:
        return "unclear" if 2 * sum(bool(readings([cell])) for cell in cells) > len(cells) else "category"
    are_whole = np.array_equal(numbers, np.round(numbers)) and len(np.unique(numbers)) == len(numbers) > 2
    is_index = are_whole and (name.startswith("Unnamed: ") or np.ptp(numbers) == len(numbers) - 1)
    return "numbers the rows" if is_index else "number"


def _category(cell: Any) -> str:
    return normal_name(cell if isinstance(cell, str) else json.dumps(cell))
