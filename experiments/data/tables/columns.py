"""Kinds of the columns of a table: numbers, categories, and what is no feature."""

import logging
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import shorten
from probattn.experiments.data.tables.numbers import Notation, is_missing, readings

CATEGORY, IGNORED, EMPTY, ROWS, UNCLEAR = "category", "ignored", "empty", "numbers the rows", "unclear"
"""Kinds of columns besides those of numbers."""
_log = logging.getLogger(__name__)


def column_kinds(
    cells: pd.DataFrame,
    *,
    numbers: Collection[str] = (),
    categories: Collection[str] = (),
    ignore: Collection[str] = (),
    decimal: str | None = None,
) -> dict[str, Notation | str]:
    """Return the kind of each column: the notation of its numbers, or a word such as :data:`CATEGORY`.

    A column has numbers if all cells that are not missing have one notation: decimal mark, currency and unit. It is
    unclear if half of them are numbers, or if it may be one of thousands: ``1.234`` and ``999``.

    Args:
        cells: texts by column.
        numbers, categories, ignore: columns whose kind the data's owner has chosen.
        decimal: decimal mark, ``"."`` or ``","``; None finds it.
    """
    kinds: dict[str, Notation | str] = dict.fromkeys(cells, IGNORED) | dict.fromkeys(categories, CATEGORY)
    columns = {name: list(cells[name]) for name in cells if name not in {*categories, *ignore}}
    possible = {name: readings(column, decimal=decimal) for name, column in columns.items()}
    marks = {notation.decimal for reading in possible.values() if len(reading) == 1 for notation in reading}
    for name, column in columns.items():
        chosen = _choose(possible[name], column, uses_commas="," in marks)
        if name in numbers and (chosen or not possible[name]):
            kinds[name] = chosen or Notation(decimal or ".")
        elif all(map(is_missing, column)):
            kinds[name] = EMPTY
        elif chosen is not None:
            kinds[name] = ROWS if _numbers_rows(name, possible[name][chosen]) else chosen
        else:
            readable = [bool(readings([cell])) for cell in column if not is_missing(cell)]
            kinds[name] = UNCLEAR if 2 * sum(readable) > len(readable) else CATEGORY
    return kinds


def describe_columns(cells: pd.DataFrame, kinds: Mapping[str, Notation | str]) -> pd.DataFrame:
    """Return a table of columns: kind, range of the numbers or number of values, share of missing cells, an example.

    Args:
        cells: texts by column.
        kinds: of :func:`column_kinds`.
    """
    rows = []
    for name, kind in kinds.items():
        present = [cell for cell in cells[name] if not is_missing(cell)]
        extent = f"{len(set(present))} different"
        if isinstance(kind, Notation):
            numbers = [number for cell in present if (number := kind.read(cell)) is not None] or [math.nan]
            extent, kind = f"{min(numbers):.6g} to {max(numbers):.6g}", "number"
        rows.append((name, kind, extent, f"{1 - len(present) / len(cells):.0%}", (present or [""])[0][:30]))
    return pd.DataFrame(rows, columns=["column", "kind", "range", "missing", "example"])


def feature_notations(
    kinds: Mapping[str, Notation | str], *, table: pd.DataFrame, label_column: str, path: object
) -> dict[str, Notation | None]:
    """Return the columns that are features: the notation of numbers, None for categories. Logs what is left out.

    Args:
        kinds: of :func:`column_kinds`.
        table: of :func:`describe_columns`, for messages.
        label_column: column of the labels, which is no feature.
        path: the file, for messages.

    Raises:
        DatasetError: a column is unclear, or none is a feature; the message has the table.
    """
    shown = table.to_string(index=False)
    unclear = [name for name, kind in kinds.items() if kind == UNCLEAR]
    if unclear:
        raise DatasetError(
            f"{path}: the cells of {shorten(unclear)} are not all numbers of one notation.\n{shown}\nChoose with --set "
            f"'data.categorical_columns=[\"{unclear[0]}\"]', data.ignore_columns, data.number_columns or data.decimal"
        )
    left_out = {name: kind for name, kind in kinds.items() if kind in (EMPTY, ROWS)}
    for name, kind in left_out.items():
        _log.warning("%s: the column %r is left out (%s); data.number_columns takes it", path, name, kind)
    features = {name: kind for name, kind in kinds.items() if name not in {*left_out, label_column} and kind != IGNORED}
    if not features:
        raise DatasetError(f"{path} has no column of features besides the labels:\n{shown}")
    return {name: kind if isinstance(kind, Notation) else None for name, kind in features.items()}


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


def _numbers_rows(name: str, numbers: np.ndarray) -> bool:
    """Return True for an index without a name, and for whole numbers that follow each other, in any order."""
    are_whole = np.array_equal(numbers, np.round(numbers)) and len(np.unique(numbers)) == len(numbers) > 2
    return are_whole and (name.startswith("Unnamed: ") or np.ptp(numbers) == len(numbers) - 1)
