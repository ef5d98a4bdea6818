"""Encoding of the rows of a table as numbers, fitted to its training part."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from pydantic import TypeAdapter
from torch import Tensor

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import normal_name
from probattn.experiments.data.tables.numbers import Notation

FEATURES = NUMBER, CATEGORY = "number", "category"  # kinds of columns that are features


@dataclass(frozen=True)
class Column:
    """Column of a table: of numbers, which become ``(number - mean) / std``, or of categories, which become codes.

    A missing number is the mean, and a second feature says that it is missing, if numbers of the training part are.

    Attributes:
        name: name of the column.
        kind: :data:`NUMBER`, :data:`CATEGORY`, or why it is no feature (see :mod:`~.columns`).
        notation: notation of its numbers.
        mean, std, missing: of the training part's numbers: mean, standard deviation, and whether some are missing.
        values: categories, of which entry i has the code i + 1; others have the code 0.
    """

    name: str
    kind: str = NUMBER
    notation: Notation = Notation()
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False
    values: tuple[str, ...] = ()

    @property
    def sizes(self) -> list[int | None]:
        """Number of codes of each of its features; None for numbers."""
        return [len(self.values) + 1] if self.kind == CATEGORY else [None, 2] if self.missing else [None]

    def fit(self, cells: pd.Series) -> Self:
        """Return the column fitted to the cells of the training part."""
        if self.kind == CATEGORY:
            return replace(self, values=tuple(sorted(set(map(_category, cells)))))
        numbers = self.notation.read(cells)
        present = numbers[np.isfinite(numbers)].tolist() or [0.0]
        return replace(self, mean=fmean(present), std=pstdev(present) or 1.0, missing=bool(np.isnan(numbers).any()))

    def features(self, cells: pd.Series) -> list[np.ndarray]:
        """Return one or two features of each cell; raise DatasetError for a cell that is no number of the notation."""
        if self.kind == CATEGORY:
            return [pd.Index(self.values).get_indexer(cells.map(_category)) + 1]
        numbers = self.notation.read(cells)
        wrong = np.isinf(numbers) | (np.isnan(numbers) & (not self.missing))
        if wrong.any():
            problem = f"{cells.index[wrong][0]}: {self.name!r} is {cells[wrong].iloc[0]!r}, in a column of numbers"
            raise DatasetError(f"{problem}; mend it, remove the row, or add the column to data.categorical_columns")
        scaled = np.nan_to_num((numbers - self.mean) / self.std)
        return [scaled, np.isnan(numbers)] if self.missing else [scaled]


@dataclass(frozen=True)
class TableEncoding:
    """Encoding of rows as features ``(n, features)``: standardised numbers and codes of categories."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, rows: pd.DataFrame, columns: Sequence[Column]) -> Self:
        """Fit columns to the rows of the training part."""
        return cls(tuple(column.fit(rows[column.name]) for column in columns))

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


def _category(cell: Any) -> str:
    return normal_name(cell if isinstance(cell, str) else json.dumps(cell))
