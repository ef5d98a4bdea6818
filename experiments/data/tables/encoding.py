"""Columns of a table, and their encoding as numbers, fitted to the training part."""

import itertools
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
from probattn.experiments.data.own.examples import normal_name
from probattn.experiments.data.tables.dates import days
from probattn.experiments.data.tables.numbers import Notation

# Kinds of columns. Features are the first three; those of texts are left out if their values mostly
# differ. The data's owner may choose a number, a category or to ignore a column; the rest is found.
Kind = Literal[
    "number",
    "category",
    "date",
    "ignored",
    "empty",
    "numbers the rows",
    "mostly different values",
    "unclear",
]
FEATURES = "number", "category", "date"
# A number is far outside of training if it exceeds its range by more than this share of the range.
MARGIN = 0.1


@dataclass(frozen=True)
class Column:
    """Column of a table: of numbers, which become ``(number - mean) / std``, of categories, or
    dates.

    A category becomes its code. A date becomes the number of its days since 1970, and the code of
    its day of the week. A missing number or date is the mean, and another feature says that it is
    missing, if some of the training part are.

    Attributes:
        name: name of the column.
        kind: ``number``, ``category``, ``date``, or why it is no feature.
        notation: notation of its numbers.
        form: format of its dates.
        mean, std, missing: of the training part's numbers: mean, standard deviation, and whether
        some are missing.
        low, high: smallest and largest feature of the training part's numbers.
        values: categories, of which entry i has the code i + 1; others have the code 0.
    """

    name: str
    kind: Kind = "number"
    notation: Notation = Notation()
    form: str = ""
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False
    low: float = 0.0
    high: float = 0.0
    values: tuple[str, ...] = ()

    @property
    def sizes(self) -> list[int | None]:
        """Number of codes of each of its features; None for numbers."""
        if self.kind == "category":
            return [len(self.values) + 1]
        days_of_week = [8] * (self.kind == "date")
        is_missing_code = [2] * self.missing
        return [None, *days_of_week, *is_missing_code]

    def read(self, cells: Sequence[Any]) -> np.ndarray:
        """Return the categories of cells, or numbers, float64 (n,).

        NaN stands for what is missing, infinity for what is no number of the notation or no date.
        """
        if self.kind == "category":
            return np.array(list(map(_category, cells)), dtype=object)
        if self.kind == "date":
            return days(cells, self.form)
        return self.notation.read(cells)

    def fit(self, cells: pd.Series) -> Self:
        """Return the column fitted to the cells of the training part."""
        if self.kind == "category":
            return replace(self, values=tuple(sorted(set(self.read(cells)))))
        numbers = self.read(cells)
        present = numbers[np.isfinite(numbers)].tolist() or [0.0]
        mean = fmean(present)
        std = pstdev(present) or 1.0
        low = (min(present) - mean) / std
        high = (max(present) - mean) / std
        missing = bool(np.isnan(numbers).any())
        return replace(self, mean=mean, std=std, missing=missing, low=low, high=high)

    def features(self, cells: pd.Series) -> list[np.ndarray]:
        """Return the features of each cell; raise DatasetError for one that is no number or
        date."""
        values = self.read(cells)
        if self.kind == "category":
            return [pd.Index(self.values).get_indexer(values) + 1]
        invalid = np.isinf(values) | (np.isnan(values) & (not self.missing))
        if invalid.any():
            place, cell = next(iter(cells[invalid].items()))
            problem = f"{place}: {self.name!r} is {cell!r}, in a column of {self.kind}s"
            advice = "correct it, remove the row, or train with another data.decimal"
            raise DatasetError(
                f"{problem}; {advice}, or with the column in data.categorical_columns"
            )
        features = [np.nan_to_num((values - self.mean) / self.std)]
        if self.kind == "date":
            # 1970 began on a Thursday; Monday has the code 1, a missing date the code 0.
            features.append(np.nan_to_num((np.floor(values) + 3) % 7 + 1))
        if self.missing:
            features.append(np.isnan(values))
        return features


@dataclass(frozen=True)
class TableEncoding:
    """Encoding of rows as features ``(n, features)``: standardised numbers and codes of
    categories."""

    columns: tuple[Column, ...]

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Number of codes of each feature; None for numbers."""
        return tuple(itertools.chain.from_iterable(column.sizes for column in self.columns))

    @property
    def are_categories(self) -> list[bool]:
        """Return which features are codes of categories."""
        are = list[bool]()
        for column in self.columns:
            are += [column.kind == "category"] * len(column.sizes)
        return are

    def features(self, rows: pd.DataFrame) -> Tensor:
        """Return the features of rows, float32 ``(n, features)``.

        Args:
            rows: cells by column, indexed by their place, such as file and line.

        Raises:
            DatasetError: a missing column, or a cell that is no number in a column of numbers;
                names file and line.
        """
        features: list[np.ndarray] = []
        for column in self.columns:
            if column.name not in rows:
                raise DatasetError(f"{rows.index[0]}: there is no column {column.name!r}")
            features += column.features(rows[column.name])
        return torch.from_numpy(np.stack(features, axis=1).astype(np.float32))

    def unlike_training(self, features: Tensor) -> pd.DataFrame:
        """Return which cells are unlike training, by row and column: unknown categories, far
        numbers.

        Args:
            features: of rows, ``(n, features)``.
        """
        unlike = {}
        start = 0
        rows = features.numpy()
        for column in self.columns:
            values = rows[:, start]
            start += len(column.sizes)
            margin = MARGIN * (column.high - column.low)
            is_unlike = (values < column.low - margin) | (values > column.high + margin)
            if column.kind == "category":
                is_unlike = values == 0
            unlike[f"{column.name} unlike training"] = is_unlike
        return pd.DataFrame(unlike)

    @classmethod
    def from_json(cls, columns: Sequence[Mapping[str, Any]]) -> Self:
        """Read columns back from ``preprocessing.json``."""
        return cls(TypeAdapter(tuple[Column, ...]).validate_python(columns))


def _category(cell: Any) -> str:
    return normal_name(cell if isinstance(cell, str) else json.dumps(cell))
