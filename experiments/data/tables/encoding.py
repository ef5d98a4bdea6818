"""Encoding of the rows of a table as numbers, fitted to its training part."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any, Self

import torch
from torch import Tensor

from probattn.experiments.data.errors import DatasetError

UNKNOWN = 0
"""Code of a category that the training part does not have."""
LARGEST = 1e18
"""Largest magnitude of a number: its square is finite in single precision."""


@dataclass(frozen=True)
class NumberColumn:
    """Column of numbers, which are standardised: ``(value - mean) / std``."""

    name: str
    mean: float
    std: float


@dataclass(frozen=True)
class CategoryColumn:
    """Column of categories, of which ``values[i]`` has the code i + 1; other values have the code :data:`UNKNOWN`."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class TableEncoding:
    """Encoding of rows as features ``(n, columns)``: standardised numbers and codes of categories."""

    columns: tuple[NumberColumn | CategoryColumn, ...]

    @classmethod
    def fit(
        cls,
        rows: Sequence[Mapping[str, str]],
        places: Sequence[str],
        *,
        names: Sequence[str],
        categories: Collection[str],
    ) -> Self:
        """Fit the encoding to the training part.

        A column whose cells are all numbers is a column of numbers, any other one of categories.

        Args:
            rows: cells by column, as text.
            places: file and line of each row.
            names: columns of the features.
            categories: columns whose numbers are names.

        Raises:
            DatasetError: a column of which most cells are numbers, but not all; names the first that is none.
        """
        columns: list[NumberColumn | CategoryColumn] = []
        for name in names:
            cells = [row[name].strip() for row in rows]
            wrong = [at for at, cell in enumerate(cells) if number(cell) is None]
            if name in categories or 2 * len(wrong) >= len(cells):
                columns.append(CategoryColumn(name, tuple(sorted(set(cells)))))
                continue
            if wrong:
                _refuse(name, cells[wrong[0]], places[wrong[0]], more=len(wrong) - 1)
            values = [float(cell) for cell in cells]
            columns.append(NumberColumn(name, fmean(values), pstdev(values) or 1.0))
        return cls(tuple(columns))

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Number of codes of each column, :data:`UNKNOWN` included; None for numbers."""
        return tuple(len(each.values) + 1 if isinstance(each, CategoryColumn) else None for each in self.columns)

    def features(self, rows: Sequence[Mapping[str, str]], places: Sequence[str]) -> Tensor:
        """Return the features of rows, float32 ``(n, columns)``.

        Raises:
            DatasetError: a missing column, or a cell that is no number in a column of numbers; names file and line.
        """
        encoded = []
        for each in self.columns:
            try:
                cells = [row[each.name].strip() for row in rows]
            except KeyError as error:
                raise DatasetError(f"{places[0]}: there is no column {each.name!r}") from error
            if isinstance(each, CategoryColumn):
                codes = {value: code for code, value in enumerate(each.values, start=1)}
                encoded.append([float(codes.get(cell, UNKNOWN)) for cell in cells])
                continue
            for cell, place in zip(cells, places, strict=True):
                if number(cell) is None:
                    _refuse(each.name, cell, place)
            encoded.append([(float(cell) - each.mean) / each.std for cell in cells])
        return torch.tensor(encoded, dtype=torch.float32).T.contiguous()

    def to_json(self) -> list[dict[str, Any]]:
        """Return the columns as ``preprocessing.json`` holds them."""
        return [asdict(each) for each in self.columns]

    @classmethod
    def from_json(cls, columns: Sequence[Mapping[str, Any]]) -> Self:
        """Read columns back that :meth:`to_json` returned."""
        return cls(
            tuple(
                CategoryColumn(each["name"], tuple(each["values"])) if "values" in each else NumberColumn(**each)
                for each in columns
            )
        )


def number(cell: str) -> float | None:
    """Return the number that a cell holds, of at most :data:`LARGEST`, or None."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


def _refuse(name: str, cell: str, place: str, *, more: int = 0) -> None:
    others = f", as {more} more" if more else ""
    raise DatasetError(
        f"{place}: {name!r} is {repr(cell) if cell else 'empty'}{others}, in a column of numbers; put a number there "
        f"(at most {LARGEST:g}), remove the row, or make it a column of categories with --set "
        f"'data.categorical_columns=[\"{name}\"]'"
    )
