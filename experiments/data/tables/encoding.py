"""Encoding of the rows of a table as numbers, fitted to its training part."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any, Self

import torch
from torch import Tensor

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import normal_name
from probattn.experiments.data.tables.numbers import LARGEST, Notation

UNKNOWN = 0
"""Code of a category that the training part does not have."""


@dataclass(frozen=True)
class NumberColumn:
    """Column of numbers, which are standardised: ``(value - mean) / std``.

    A missing number is the mean, and a second feature says that it is missing, if numbers of the training part are.
    """

    name: str
    mean: float
    std: float
    notation: Notation = Notation()
    missing: bool = False

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """None for the numbers, and 2 for the codes of a missing number."""
        return (None, 2) if self.missing else (None,)

    def encode(self, cells: Sequence[Any], places: Sequence[str]) -> list[list[float]]:
        """Return the features of a column; raise DatasetError for a cell that is no number of its notation."""
        values = [self.notation.read(cell) for cell in cells]
        for value, cell, place in zip(values, cells, places, strict=True):
            if value is None or (math.isnan(value) and not self.missing):
                raise not_a_number(self.name, cell, place)
        is_missing = [float(math.isnan(value)) for value in values]
        scaled = [0.0 if math.isnan(value) else (value - self.mean) / self.std for value in values]
        return [scaled, is_missing] if self.missing else [scaled]


@dataclass(frozen=True)
class CategoryColumn:
    """Column of categories, of which ``values[i]`` has the code i + 1; other values have the code :data:`UNKNOWN`."""

    name: str
    values: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int]:
        """Number of codes, :data:`UNKNOWN` included."""
        return (len(self.values) + 1,)

    def encode(self, cells: Sequence[Any], places: Sequence[str]) -> list[list[float]]:
        """Return the codes of a column."""
        codes = {value: float(code) for code, value in enumerate(self.values, start=1)}
        return [[codes.get(category(cell), float(UNKNOWN)) for cell in cells]]


@dataclass(frozen=True)
class TableEncoding:
    """Encoding of rows as features ``(n, features)``: standardised numbers and codes of categories."""

    columns: tuple[NumberColumn | CategoryColumn, ...]

    @classmethod
    def fit(cls, rows: Sequence[Mapping[str, Any]], *, kinds: Mapping[str, Notation | None]) -> Self:
        """Fit the encoding to the training part.

        Args:
            rows: cells by column.
            kinds: columns of the features: the notation of numbers, or None for categories.
        """
        columns: list[NumberColumn | CategoryColumn] = []
        for name, notation in kinds.items():
            cells = [row[name] for row in rows]
            if notation is None:
                columns.append(CategoryColumn(name, tuple(sorted(set(map(category, cells))))))
                continue
            values = [notation.read(cell) for cell in cells]
            numbers = [value for value in values if value is not None and not math.isnan(value)] or [0.0]
            missing = any(value is None or math.isnan(value) for value in values)
            columns.append(NumberColumn(name, fmean(numbers), pstdev(numbers) or 1.0, notation, missing))
        return cls(tuple(columns))

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Number of codes of each feature; None for numbers."""
        return tuple(size for column in self.columns for size in column.sizes)

    def features(self, rows: Sequence[Mapping[str, Any]], places: Sequence[str]) -> Tensor:
        """Return the features of rows, float32 ``(n, features)``.

        Raises:
            DatasetError: a missing column, or a cell that is no number in a column of numbers; names file and line.
        """
        encoded: list[list[float]] = []
        for column in self.columns:
            if any(column.name not in row for row in rows):
                raise DatasetError(f"{places[0]}: there is no column {column.name!r}")
            encoded += column.encode([row[column.name] for row in rows], places)
        return torch.tensor(encoded, dtype=torch.float32).T.contiguous()

    def to_json(self) -> list[dict[str, Any]]:
        """Return the columns as ``preprocessing.json`` holds them."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, columns: Sequence[Mapping[str, Any]]) -> Self:
        """Read columns back that :meth:`to_json` returned."""
        return cls(
            tuple(
                CategoryColumn(column["name"], tuple(column["values"]))
                if "values" in column
                else NumberColumn(**column | {"notation": Notation(*column["notation"])})
                for column in columns
            )
        )


def category(cell: Any) -> str:
    """Return the name of a category; values of JSON other than texts keep their spelling."""
    return normal_name(cell if isinstance(cell, str) else json.dumps(cell))


def not_a_number(name: str, cell: Any, place: str) -> DatasetError:
    """Return the error of a cell that is no number in a column of numbers."""
    shown = repr(cell) if cell else "empty"
    return DatasetError(
        f"{place}: {name!r} is {shown}, in a column of numbers; put a number there (at most {LARGEST:g}), remove the "
        f"row, or make it a column of categories with --set 'data.categorical_columns=[\"{name}\"]'"
    )
