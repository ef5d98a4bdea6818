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
from probattn.experiments.data.tables.numbers import Notation

UNKNOWN = 0  # code of a category that the training part does not have


@dataclass(frozen=True)
class Column:
    """Column of numbers, which become ``(number - mean) / std``, or of categories, which become codes.

    A missing number is the mean, and a second feature says that it is missing, if numbers of the training part are.

    Attributes:
        name: name of the column.
        notation: notation of its numbers; None for categories.
        mean, std, missing: of the training part's numbers: mean, standard deviation, and whether some are missing.
        values: categories, of which entry i has the code i + 1; others have the code :data:`UNKNOWN`.
    """

    name: str
    notation: Notation | None = None
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False
    values: tuple[str, ...] = ()

    @classmethod
    def fit(cls, name: str, cells: Sequence[Any], notation: Notation | None) -> Self:
        """Return the column of the cells of the training part, of categories if ``notation`` is None."""
        if notation is None:
            return cls(name, values=tuple(sorted(set(map(_category, cells)))))
        read = [number for cell in cells if (number := notation.read(cell)) is not None]
        numbers = [number for number in read if not math.isnan(number)] or [0.0]
        return cls(name, notation, fmean(numbers), pstdev(numbers) or 1.0, any(map(math.isnan, read)))

    def features(self, cells: Sequence[Any], places: Sequence[str]) -> list[list[float]]:
        """Return one or two features of each cell; raise DatasetError for a cell that is no number of the notation."""
        if self.notation is None:
            codes = {value: code for code, value in enumerate(self.values, start=1)}
            return [[codes.get(_category(cell), UNKNOWN) for cell in cells]]
        numbers = list(map(self.notation.read, cells))
        for number, cell, place in zip(numbers, cells, places, strict=True):
            if number is None or (math.isnan(number) and not self.missing):
                problem = f"{place}: {self.name!r} is {cell!r}, in a column of numbers"
                raise DatasetError(f"{problem}; mend it, remove the row, or add the column to data.categorical_columns")
        scaled = [0.0 if math.isnan(number) else (number - self.mean) / self.std for number in numbers]
        return [scaled, list(map(math.isnan, numbers))] if self.missing else [scaled]


@dataclass(frozen=True)
class TableEncoding:
    """Encoding of rows as features ``(n, features)``: standardised numbers and codes of categories."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, rows: Sequence[Mapping[str, Any]], *, notations: Mapping[str, Notation | None]) -> Self:
        """Fit the encoding to the rows of the training part.

        Args:
            rows: cells by column.
            notations: columns of the features: the notation of numbers, or None for categories.
        """
        cells = {name: [row[name] for row in rows] for name in notations}
        return cls(tuple(Column.fit(name, cells[name], notation) for name, notation in notations.items()))

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Number of codes of each feature; None for numbers."""
        sizes = []
        for column in self.columns:
            sizes += [len(column.values) + 1] if column.notation is None else [None, 2] if column.missing else [None]
        return tuple(sizes)

    def features(self, rows: Sequence[Mapping[str, Any]], places: Sequence[str]) -> Tensor:
        """Return the features of rows, float32 ``(n, features)``.

        Raises:
            DatasetError: a missing column, or a cell that is no number in a column of numbers; names file and line.
        """
        features: list[list[float]] = []
        for column in self.columns:
            if any(column.name not in row for row in rows):
                raise DatasetError(f"{places[0]}: there is no column {column.name!r}")
            features += column.features([row[column.name] for row in rows], places)
        return torch.tensor(features, dtype=torch.float32).T.contiguous()

    def to_json(self) -> list[dict[str, Any]]:
        """Return the columns as ``preprocessing.json`` holds them."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, columns: Sequence[Mapping[str, Any]]) -> Self:
        """Read columns back that :meth:`to_json` returned."""
        columns = [column | {"values": tuple(column["values"])} for column in columns]
        return cls(tuple(Column(**c | {"notation": c["notation"] and Notation(*c["notation"])}) for c in columns))


def _category(cell: Any) -> str:
    return normal_name(cell if isinstance(cell, str) else json.dumps(cell))
