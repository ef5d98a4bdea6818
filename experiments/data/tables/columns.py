"""Kinds of the columns of a table: numbers, categories, and what is no feature."""

import logging
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import shorten
from probattn.experiments.data.tables.numbers import Notation, find_notations, is_missing

Kind = Notation | str
"""Notation of a column of numbers, or one of the words below."""
CATEGORY, IGNORED, EMPTY, ROWS, UNCLEAR = "category", "ignored", "empty", "numbers the rows", "UNCLEAR"
_LEFT_OUT = {EMPTY: "is empty", ROWS: "only numbers the rows"}
_log = logging.getLogger(__name__)


def column_kinds(
    cells: pd.DataFrame,
    *,
    numbers: Collection[str] = (),
    categories: Collection[str] = (),
    ignore: Collection[str] = (),
    decimal: str | None = None,
) -> dict[str, Kind]:
    """Return the kind of each column.

    A column is one of numbers if every cell that is not missing is a number of one notation: decimal mark, currency and
    unit. It is :data:`UNCLEAR` if half of them are, or if ``1.234`` and ``999`` may be 1234 and 999.

    Args:
        cells: texts by column.
        numbers, categories, ignore: columns whose kind the data's owner has chosen.
        decimal: the decimal mark; None finds it.
    """
    columns = {name: list(cells[name]) for name in cells.columns if name not in {*categories, *ignore}}
    readings = {name: find_notations(column, decimal=decimal) for name, column in columns.items()}
    marks = {
        next(iter(found)).decimal for name, found in readings.items() if len(found) == 1 and _marked(columns[name])
    }
    kinds: dict[str, Kind] = {name: CATEGORY if name in categories else IGNORED for name in cells.columns}
    for name, found in readings.items():
        notation = _choose(found, columns[name], marks) if found else None
        if found and notation is None:
            kinds[name] = UNCLEAR
        elif name in numbers:
            kinds[name] = notation or Notation(decimal or ".")
        elif all(map(is_missing, columns[name])):
            kinds[name] = EMPTY
        elif notation is not None:
            kinds[name] = ROWS if _numbers_rows(name, found[notation]) else notation
        else:
            kinds[name] = UNCLEAR if _mostly_numbers(columns[name]) else CATEGORY
    return kinds


def describe_columns(cells: pd.DataFrame, kinds: Mapping[str, Kind]) -> pd.DataFrame:
    """Return a table of a table's columns: kind, range, share of missing cells, and an example.

    Args:
        cells: texts by column.
        kinds: of :func:`column_kinds`.
    """
    rows = []
    for name, kind in kinds.items():
        column = list(cells[name])
        present = [cell for cell in column if not is_missing(cell)]
        if isinstance(kind, Notation):
            values = [value for cell in present if (value := kind.read(cell)) is not None] or [np.nan]
            extent = f"{min(values):.6g} to {max(values):.6g}"
        else:
            extent = f"{len(set(column))} different"
        word = "number" if isinstance(kind, Notation) else kind
        rows.append((name, word, extent, f"{1 - len(present) / len(column):.0%}", (present or [""])[0][:30]))
    return pd.DataFrame(rows, columns=["column", "kind", "range", "missing", "example"])


def feature_kinds(
    cells: pd.DataFrame, kinds: Mapping[str, Kind], *, label_column: str, path: object
) -> dict[str, Notation | None]:
    """Return the columns that are features: the notation of numbers, None for categories; log which are left out.

    Raises:
        DatasetError: a column is unclear, with a table of all columns; or none is a feature.
    """
    table = describe_columns(cells, kinds).to_string(index=False)
    unclear = [name for name, kind in kinds.items() if kind == UNCLEAR]
    if unclear:
        raise DatasetError(
            f"{path}: not every cell of {shorten(unclear)} is a number of one notation.\n{table}\nChoose with --set "
            f"'data.categorical_columns=[\"{unclear[0]}\"]', 'data.ignore_columns=[…]', 'data.number_columns=[…]', or "
            "data.decimal=, (or .)"
        )
    for name, kind in kinds.items():
        if kind in (EMPTY, ROWS):
            _log.warning(
                "%s: the column %r %s and is left out; data.number_columns keeps it", path, name, _LEFT_OUT[kind]
            )
    used = {name: kind for name, kind in kinds.items() if kind not in (IGNORED, EMPTY, ROWS) and name != label_column}
    if not used:
        raise DatasetError(f"{path} has no column of features besides the labels:\n{table}")
    return {name: kind if isinstance(kind, Notation) else None for name, kind in used.items()}


def _choose(found: Mapping[Notation, np.ndarray], cells: Sequence[str], marks: Collection[str]) -> Notation | None:
    """Return the one notation, or that of other columns, or the likelier one; None if ``1.234`` may be either."""
    if len(found) == 1:
        return next(iter(found))
    point, comma = found
    if marks:
        return comma if marks == {","} else point
    are_numbers = np.nan_to_num(found[comma]) != 0
    scales = found[point][are_numbers] / found[comma][are_numbers]
    is_scale_only = np.ptp(scales) < 1  # all are 1000: only the unit differs
    return point if is_scale_only or any("," in cell for cell in cells) else None


def _marked(cells: Sequence[str]) -> bool:
    return any("." in cell or "," in cell for cell in cells)


def _mostly_numbers(cells: Sequence[str]) -> bool:
    present = [cell for cell in cells if not is_missing(cell)]
    return 2 * sum(bool(find_notations([cell])) for cell in present) > len(present)


def _numbers_rows(name: str, values: np.ndarray) -> bool:
    """Return True for an index without a name, and for whole numbers that follow each other, in any order."""
    if not np.array_equal(values, np.round(values)) or len(np.unique(values)) < len(values):
        return False
    return name.startswith("Unnamed: ") or np.ptp(values) == len(values) - 1 > 1
