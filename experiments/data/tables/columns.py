"""Kinds of the columns of a table: numbers, categories, and what is no feature."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import shorten
from probattn.experiments.data.tables.numbers import Notation, is_missing, readings

NUMBER, CATEGORY, IGNORED = "number", "category", "ignored"  # kinds of columns that the data's owner may choose
EMPTY, ROWS, UNCLEAR = "empty", "numbers the rows", "unclear"  # kinds that are found
Kinds = Mapping[str, Notation | str]  # notation of the numbers of a column, or a word
_log = logging.getLogger(__name__)


def column_kinds(cells: pd.DataFrame, *, chosen: Mapping[str, str], decimal: str | None = None) -> Kinds:
    """Return the kind of each column: the notation of its numbers, or a word such as :data:`CATEGORY`.

    A column has numbers if all cells that are not missing have one notation: decimal mark, currency and unit. It is
    unclear if half of them are numbers, or if it may be one of thousands: ``1.234`` and ``999``.

    Args:
        cells: texts by column.
        chosen: kinds that the data's owner has chosen: :data:`NUMBER`, :data:`CATEGORY` or :data:`IGNORED`.
        decimal: decimal mark, ``"."`` or ``","``; None finds it.
    """
    kinds = {name: chosen.get(name, NUMBER) for name in cells}
    possible = {name: readings(list(cells[name]), decimal=decimal) for name in cells if kinds[name] == NUMBER}
    uses_commas = any([notation.decimal for notation in reading] == [","] for reading in possible.values())
    for name, reading in possible.items():
        column = [cell for cell in cells[name] if not is_missing(cell)]
        notation = _choose(reading, column, uses_commas=uses_commas)
        if name in chosen and (notation or not reading):
            kinds[name] = notation or Notation(decimal or ".")
        elif not column:
            kinds[name] = EMPTY
        elif notation is not None:
            kinds[name] = ROWS if _numbers_rows(name, reading[notation]) else notation
        else:
            kinds[name] = UNCLEAR if 2 * sum(bool(readings([cell])) for cell in column) > len(column) else CATEGORY
    return kinds


def describe_columns(cells: pd.DataFrame, kinds: Kinds) -> pd.DataFrame:
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
            extent, kind = f"{min(numbers):.6g} to {max(numbers):.6g}", NUMBER
        rows.append((name, kind, extent, f"{1 - len(present) / len(cells):.0%}", (present or [""])[0][:30]))
    return pd.DataFrame(rows, columns=["column", "kind", "range", "missing", "example"])


def feature_notations(cells: pd.DataFrame, kinds: Kinds, *, label_column: str, path: Any) -> dict[str, Notation | None]:
    """Return the columns that are features: the notation of numbers, None for categories. Logs what is left out.

    Raises:
        DatasetError: a column is unclear, or none is a feature; the message has the table of all columns.
    """
    table = describe_columns(cells, kinds).to_string(index=False)
    notations = {}
    for name, kind in kinds.items():
        if kind == UNCLEAR:
            unclear = shorten([name for name, kind in kinds.items() if kind == UNCLEAR])
            choices = (
                f"'data.categorical_columns=[\"{name}\"]', data.ignore_columns, data.number_columns or data.decimal"
            )
            problem = f"{path}: the cells of {unclear} are not all numbers of one notation"
            raise DatasetError(f"{problem}.\n{table}\nChoose with --set {choices}")
        if kind in (EMPTY, ROWS):
            _log.warning("%s: the column %r is left out (%s); data.number_columns takes it", path, name, kind)
        elif name != label_column and kind != IGNORED:
            notations[name] = kind if isinstance(kind, Notation) else None
    if not notations:
        raise DatasetError(f"{path} has no column of features besides the labels:\n{table}")
    return notations


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
