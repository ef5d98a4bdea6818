"""Columns of a table: their kinds and notations, and their encoding as numbers, fitted to the training part."""

import json
import re
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
from probattn.experiments.data.tables.dates import days, find_formats
from probattn.experiments.data.tables.numbers import Notation, is_missing, readings

# Kinds of columns. Features are the first three; the data's owner may choose four, the others are found.
Kind = Literal[
    "number", "category", "date", "ignored", "empty", "numbers the rows", "mostly different values", "unclear"
]
FEATURES = "number", "category", "date"
# Columns of texts are left out if more than half of their values differ, and at least so many.
MIN_DIFFERENT = 20
# A number is outside of the training part if it is beyond its range by more than this share of the range.
MARGIN = 0.1
# Cells that stand for a missing number in some tables, and have no decimals.
_SENTINEL = re.compile(r"[-\u2212]9+")


@dataclass(frozen=True)
class Column:
    """Column of a table: of numbers, which become ``(number - mean) / std``, of categories, which become codes, or dates.

    A date becomes the number of its days since 1970, and the code of its day of the week. A missing number or date is
    the mean, and another feature says that it is missing, if some of the training part are.

    Attributes:
        name: name of the column.
        kind: ``number``, ``category``, ``date``, or why it is no feature.
        notation: notation of its numbers.
        is_ambiguous: True if all its training cells are numbers of the other decimal mark, too, 1,000 times as large
            or small: a cell that is not is refused.
        form: format of its dates.
        mean, std, missing: of the training part's numbers: mean, standard deviation, and whether some are missing.
        low, high: range of the training part's numbers; None before it is fitted.
        values: categories, of which entry i has the code i + 1; others have the code 0.
    """

    name: str
    kind: Kind = "number"
    notation: Notation = Notation()
    is_ambiguous: bool = False
    form: str = ""
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()

    @property
    def sizes(self) -> list[int | None]:
        """Number of codes of each of its features; None for numbers."""
        if self.kind == "category":
            return [len(self.values) + 1]
        sizes: list[int | None] = [None]
        if self.kind == "date":
            sizes.append(8)
        if self.missing:
            sizes.append(2)
        return sizes

    def read(self, cells: Sequence[Any]) -> np.ndarray:
        """Return the categories of cells, or numbers, float64 (n,): NaN if missing, infinity if there is no such."""
        if self.kind == "category":
            return np.array(list(map(_category, cells)), dtype=object)
        if self.kind == "date":
            return days(cells, self.form)
        numbers = self.notation.read(cells)
        if self.is_ambiguous:
            with np.errstate(divide="ignore", invalid="ignore"):
                factors = self.notation.other().read(cells) / numbers
            is_same = np.isnan(factors) | np.isclose(factors, 1000) | np.isclose(factors, 0.001)
            is_same |= [_has_one_reading(cell) for cell in cells]
            numbers[~is_same] = np.inf
        return numbers

    def fit(self, cells: pd.Series) -> Self:
        """Return the column fitted to the cells of the training part."""
        if self.kind == "category":
            return replace(self, values=tuple(sorted(set(self.read(cells)))))
        numbers = self.read(cells)
        present = numbers[np.isfinite(numbers)].tolist() or [0.0]
        scale = {"mean": fmean(present), "std": pstdev(present) or 1.0, "low": min(present), "high": max(present)}
        return replace(self, missing=bool(np.isnan(numbers).any()), **scale)

    def features(self, cells: pd.Series) -> list[np.ndarray]:
        """Return the features of each cell; raise DatasetError for one that is no number of the notation, or no date."""
        values = self.read(cells)
        if self.kind == "category":
            return [pd.Index(self.values).get_indexer(values) + 1]
        invalid = np.isinf(values) | (np.isnan(values) & (not self.missing))
        if invalid.any():
            expected = "dates like those of training" if self.kind == "date" else "numbers"
            problem = f"{cells.index[invalid][0]}: {self.name!r} is {cells[invalid].iloc[0]!r}, in a column of {expected}"
            advice = "correct it, remove the row, train with another data.decimal"
            raise DatasetError(f"{problem}; {advice}, or add the column to data.categorical_columns")
        features = [np.nan_to_num((values - self.mean) / self.std)]
        if self.kind == "date":
            # 1970 began on a Thursday; Monday has the code 1, a missing date the code 0.
            features.append(np.nan_to_num((np.floor(values) + 3) % 7 + 1))
        if self.missing:
            features.append(np.isnan(values))
        return features

    def outside(self, cells: pd.Series) -> np.ndarray:
        """Return which cells are unlike the training part, bool (n,): categories that it has not, numbers far outside."""
        values = self.read(cells)
        if self.kind == "category":
            return ~np.isin(values, self.values)
        if self.low is None or self.high is None:
            return np.zeros(len(values), dtype=bool)
        margin = MARGIN * (self.high - self.low)
        return (values < self.low - margin) | (values > self.high + margin)


@dataclass(frozen=True)
class TableEncoding:
    """Encoding of rows as features ``(n, features)``: standardised numbers and codes of categories."""

    columns: tuple[Column, ...]

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Number of codes of each feature; None for numbers."""
        return tuple(size for column in self.columns for size in column.sizes)

    @property
    def are_categories(self) -> list[bool]:
        """Return which features are codes of categories."""
        return [column.kind == "category" for column in self.columns for _ in column.sizes]

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

    def remarks(self, rows: pd.DataFrame) -> list[str]:
        """Return which cells of each row are unlike the training part, as text, empty if none is."""
        remarks = [list[str]() for _ in range(len(rows))]
        for column in self.columns:
            cells = rows[column.name]
            for row in np.flatnonzero(column.outside(cells)):
                remarks[row].append(f"{column.name} {cells.iloc[row]!r}")
        return [f"not in training: {', '.join(remark)}" if remark else "" for remark in remarks]

    @classmethod
    def from_json(cls, columns: Sequence[Mapping[str, Any]]) -> Self:
        """Read columns back from ``preprocessing.json``."""
        return cls(TypeAdapter(tuple[Column, ...]).validate_python(columns))


def find_columns(
    cells: pd.DataFrame,
    *,
    chosen: Mapping[str, Kind],
    decimal: str | None = None,
    date_format: str | None = None,
    label_column: str = "",
) -> tuple[dict[str, Column], pd.DataFrame]:
    """Return the columns of a table by name, with their kind and the notation of their numbers, and a description.

    A column has numbers if all cells that are not missing have one notation: decimal mark, currency and unit. It is
    unclear if half of them are numbers, or if it may be one of thousands: ``1.234`` and ``999``. The description has
    a row for each column: kind, range of the numbers or number of values, share of missing cells, an example; of an
    unclear column what is unclear.

    Args:
        cells: texts by column.
        chosen: kinds that the data's owner has chosen: ``number``, ``category`` or ``ignored``.
        decimal: decimal mark, ``"."`` or ``","``; None finds it.
        date_format: format of dates, as of ``strptime``, for columns that it reads; None finds it.
        label_column: column whose numbers keep their units, so that two readings of them are unclear.
    """
    numeric = [name for name in cells if chosen.get(name, "number") == "number"]
    possible = {name: readings(list(cells[name]), decimal=decimal) for name in numeric}
    mark = _decimal_mark(cells, possible)
    columns, description = {}, []
    for name in cells:
        present = cells[name][[not is_missing(cell) for cell in cells[name]]]
        reading = possible.get(name, {})
        if mark is not None:
            reading = {notation: numbers for notation, numbers in reading.items() if notation.decimal == mark} or reading
        options = {"chosen": chosen.get(name), "decimal": decimal, "date_format": date_format}
        column, doubt = _find_column(name, present, reading, is_label=name == label_column, **options)
        columns[name] = column
        numbers = column.read(present) if column.kind in ("number", "date") else np.array([])
        numbers = numbers[np.isfinite(numbers)]
        extent = f"{numbers.min():.6g} to {numbers.max():.6g}" if numbers.size else f"{present.nunique()} different"
        if column.kind == "date":
            extent = f"{present.iloc[numbers.argmin()]} to {present.iloc[numbers.argmax()]}"
        example = doubt or str(next(iter(present), ""))[:30]
        description.append((name, column.kind, extent, f"{1 - len(present) / len(cells):.0%}", example))
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
    unclear = table[table["kind"] == "unclear"]
    if len(unclear) or not features:
        doubts = [f"{name!r}: {doubt}" for name, doubt in zip(unclear["column"], unclear["example"], strict=True)]
        settings = "data.decimal, data.date_format, data.number_columns=A,B, data.categorical_columns, data.ignore_columns"
        problem = f"columns are unclear: {'; '.join(doubts)}" if doubts else "no column is a feature"
        raise DatasetError(f"{problem}\nThe columns are:\n{table.to_string(index=False)}\nChoose by --set {settings}")
    return features


def _decimal_mark(cells: pd.DataFrame, possible: Mapping[str, Mapping[Notation, np.ndarray]]) -> str | None:
    """Return the decimal mark of the columns in which it is certain; None if there are none, or both marks."""
    marks = set()
    for name, reading in possible.items():
        if len(reading) == 1 and cells[name].astype(str).str.contains("[.,]").any():
            marks.add(next(iter(reading)).decimal)
    return marks.pop() if len(marks) == 1 else None


def _find_column(
    name: str,
    present: pd.Series,
    reading: Mapping[Notation, np.ndarray],
    *,
    chosen: Kind | None,
    decimal: str | None,
    date_format: str | None,
    is_label: bool,
) -> tuple[Column, str]:
    """Return a column, and what is unclear about it.

    An index without a name numbers the rows in any order, another column in theirs.

    Args:
        name: name of the column.
        present: its cells that are not missing.
        reading: its notations with their numbers.
        chosen, decimal, date_format: what the data's owner has chosen, or None.
        is_label: whether the column is the label of a regression.
    """
    if chosen in ("category", "ignored"):
        return Column(name, chosen), ""
    if not len(present):
        return Column(name, "number" if chosen else "empty"), ""
    if len(reading) > 1:
        return _choose(name, present, reading, is_label=is_label)
    if reading:
        ((notation, numbers),) = reading.items()
        numbers = numbers[np.isfinite(numbers)]
        is_whole = np.array_equal(numbers, np.round(numbers)) and len(np.unique(numbers)) == len(numbers) > 2
        is_index = is_whole and (name.startswith("Unnamed: ") or bool((np.diff(numbers) == 1).all()))
        return Column(name, "numbers the rows" if is_index and not chosen else "number", notation), ""
    if chosen:
        return Column(name, notation=Notation(decimal or ".")), ""  # the wrong cell is named later
    forms = find_formats(list(present), date_format)
    if len(forms) > 1:
        return Column(name, "unclear"), f"{present.iloc[0]!r} may have the day or the month first"
    if forms:
        return Column(name, "date", form=forms[0]), ""
    alone = [readings([cell]) for cell in present]
    if 2 * sum(map(bool, alone)) > len(present):
        notations = next(filter(None, alone))
        is_other = [not any(notation in reading for notation in notations) for reading in alone]
        place, cell = next(iter(present[is_other].items()))
        return Column(name, "unclear"), f"{place}: {cell!r} is no number like the others"
    is_different = present.nunique() > max(MIN_DIFFERENT, len(present) / 2)
    return Column(name, "mostly different values" if is_different else "category"), ""


def _choose(
    name: str, present: pd.Series, reading: Mapping[Notation, np.ndarray], *, is_label: bool
) -> tuple[Column, str]:
    """Return a column whose cells are numbers with either decimal mark.

    For a feature that does not matter if they differ by a factor alone, and ``1,234`` beside ``999`` has a comma of
    thousands. For a label it does.
    """
    (point, numbers), (_, others) = reading.items()
    texts = present.astype(str).str.strip()
    with np.errstate(invalid="ignore"):
        scales = (numbers / others)[~np.isnan(numbers)]
    scales = scales[np.isfinite(scales) & ~texts.str.fullmatch(_SENTINEL.pattern).to_numpy()]
    is_factor = bool(scales.max() < 2 * scales.min())
    has_thousands = texts.str.contains(",").any() and not texts.str.contains(".", regex=False).any()
    if not is_label and (is_factor or has_thousands):
        return Column(name, "number", point, is_ambiguous=is_factor), ""
    example = next(cell for cell in texts if re.search(r"[.,]\d{3}", cell))
    return Column(name, "unclear"), f"{example!r} may have a decimal mark or one of thousands"


def _has_one_reading(cell: Any) -> bool:
    """Return True for a number of JSON, and for one that stands for a missing number."""
    return not isinstance(cell, str) or bool(_SENTINEL.fullmatch(cell.strip()))


def _category(cell: Any) -> str:
    return normal_name(cell if isinstance(cell, str) else json.dumps(cell))
