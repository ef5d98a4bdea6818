"""Kinds of the columns of a table: numbers, categories, and what is no feature."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import shorten
from probattn.experiments.data.tables.encoding import CATEGORY, FEATURES, NUMBER, Column
from probattn.experiments.data.tables.numbers import Notation, is_missing, readings

# Kinds of columns that are no features: the data's owner chooses the first, the others are found.
IGNORED, EMPTY, ROWS, UNCLEAR = "ignored", "empty", "numbers the rows", "unclear"


def find_columns(cells: pd.DataFrame, *, chosen: Mapping[str, str], decimal: str | None = None) -> dict[str, Column]:
    """Return the columns of a table by name, with their kind and the notation of their numbers.

    A column has numbers if all cells that are not missing have one notation: decimal mark, currency and unit. It is
    unclear if half of them are numbers, or if it may be one of thousands: ``1.234`` and ``999``.

    Args:
        cells: texts by column.
        chosen: kinds that the data's owner has chosen: numbers, categories or :data:`IGNORED`.
        decimal: decimal mark, ``"."`` or ``","``; None finds it.
    """
    numeric = [name for name in cells if chosen.get(name, NUMBER) == NUMBER]
    possible = {name: readings(list(cells[name]), decimal=decimal) for name in numeric}
    uses_commas = any([notation.decimal for notation in reading] == [","] for reading in possible.values())
    columns = {}
    for name in cells:
        kind, reading = chosen.get(name), possible.get(name, {})
        present = [cell for cell in cells[name] if not is_missing(cell)]
        notation = _choose(reading, present, uses_commas=uses_commas)
        if kind is None:
            kind = _kind(name, present, reading.get(notation))
        elif kind == NUMBER and notation is None:  # without any, the cell that is no number is named later
            kind, notation = UNCLEAR if reading else NUMBER, Notation(decimal or ".")
        columns[name] = Column(name, kind, notation or Notation())
    return columns


def describe_columns(cells: pd.DataFrame, columns: Mapping[str, Column]) -> pd.DataFrame:
    """Return a table of columns: kind, range of the numbers or number of values, share of missing cells, an example."""
    rows = []
    for name, column in columns.items():
        present = [cell for cell in cells[name] if not is_missing(cell)]
        numbers = column.notation.read(present if column.kind == NUMBER else [])
        numbers = numbers[np.isfinite(numbers)]
        extent = f"{numbers.min():.6g} to {numbers.max():.6g}" if numbers.size else f"{len(set(present))} different"
        rows.append((name, column.kind, extent, f"{1 - len(present) / len(cells):.0%}", (present or [""])[0][:30]))
    return pd.DataFrame(rows, columns=["column", "kind", "range", "missing", "example"])


def choose_features(columns: Mapping[str, Column], table: pd.DataFrame, *, label_column: str) -> list[Column]:
    """Return the columns that are features.

    Args:
        columns: of :func:`find_columns`.
        table: their description, for messages.
        label_column: name of the column of the labels.

    Raises:
        DatasetError: a column is unclear, or none is a feature; the message has the table of all columns.
    """
    features = [column for name, column in columns.items() if column.kind in FEATURES and name != label_column]
    unclear = [name for name, column in columns.items() if column.kind == UNCLEAR]
    if unclear or not features:
        problem = f"the cells of {shorten(unclear)} are not all numbers of one notation" if unclear else "no features"
        settings = (
            "data.number_columns, data.categorical_columns, data.ignore_columns (names with commas), data.decimal"
        )
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


def _kind(name: str, cells: Sequence[str], numbers: np.ndarray | None) -> str:
    """Return the kind of a column by its cells that are not missing, and by its numbers, if all are.

    An index without a name, and whole numbers that follow each other in any order, number the rows.
    """
    if not cells:
        return EMPTY
    if numbers is None:
        return UNCLEAR if 2 * sum(bool(readings([cell])) for cell in cells) > len(cells) else CATEGORY
    are_whole = np.array_equal(numbers, np.round(numbers)) and len(np.unique(numbers)) == len(numbers) > 2
    return ROWS if are_whole and (name.startswith("Unnamed: ") or np.ptp(numbers) == len(numbers) - 1) else NUMBER
