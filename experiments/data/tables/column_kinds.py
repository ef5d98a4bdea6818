"""The kind and the notation of each column of a table, as its cells show them."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.tables.dates import find_formats
from probattn.experiments.data.tables.encoding import FEATURES, Column, Kind
from probattn.experiments.data.tables.numbers import Notation, is_missing, readings

# Values mostly differ if more than half of them do, and more than this number.
MIN_DIFFERENT = 20


# Cells that stand for a missing number in some tables, and have no decimals.
_SENTINEL = r"[-\u2212](9+|1)"


def find_columns(
    cells: pd.DataFrame,
    *,
    chosen: Mapping[str, Kind],
    decimal: str | None = None,
    day_first: bool | None = None,
    label_column: str = "",
) -> tuple[dict[str, Column], pd.DataFrame]:
    """Return the columns of a table by name, with their kind and notation, and a description.

    A column has numbers if all cells that are not missing have one notation: decimal mark, currency
    and unit. It is unclear if half of them are numbers, or if the mark may be one of thousands:
    ``1.234`` and ``999``, and the other columns have no mark that is clear, or both. The
    description has a row for each column: kind, range of the numbers or number of values, share of
    missing cells, an example; of an unclear column what is unclear.

    Args:
        cells: texts by column.
        chosen: kinds that the data's owner has chosen: ``number``, ``category`` or ``ignored``.
        decimal: decimal mark, ``"."`` or ``","``; None finds it.
        day_first: whether the day is before the month where both may be; None finds it.
        label_column: column whose numbers keep their units: two readings of them are unclear, if
            no other column decides.
    """
    numeric = [name for name in cells if chosen.get(name, "number") == "number"]
    possible = {name: readings(list(cells[name]), decimal=decimal) for name in numeric}
    single = [(name, *possible[name]) for name in numeric if len(possible[name]) == 1]
    marks = {notation.decimal for name, notation in single if _decides(notation, cells[name])}
    columns = {}
    description = []
    for name in cells:
        present = cells[name][~cells[name].map(is_missing)]
        notations = list(possible.get(name, {}))
        if len(marks) == 1 and len(notations) == 2:
            notations = [notation for notation in notations if notation.decimal in marks]
        column = Column(name, chosen.get(name, "empty"), Notation(decimal or "."))
        doubt = ""
        if len(present) and column.kind not in ("category", "ignored"):
            column, doubt = _find_column(
                column,
                present,
                notations,
                decimal=decimal,
                day_first=day_first,
                is_strict=name == label_column or len(marks) > 1,
            )
        columns[name] = column
        extent = f"{present.nunique()} different"
        numbers = column.read(present) if column.kind == "number" else np.array([])
        numbers = numbers[np.isfinite(numbers)]
        if numbers.size:
            extent = f"{numbers.min():.6g} to {numbers.max():.6g}"
        missing = f"{1 - len(present) / len(cells):.0%}"
        example = doubt or str(next(iter(present), ""))[:30]
        description.append((name, column.kind, extent, missing, example))
    return columns, pd.DataFrame(
        description, columns=["column", "kind", "range", "missing", "example"]
    )


def choose_features(
    columns: Mapping[str, Column], table: pd.DataFrame, *, label_column: str
) -> list[Column]:
    """Return the columns that are features.

    Args:
        columns, table: of :func:`find_columns`.
        label_column: name of the column of the labels.

    Raises:
        DatasetError: a column is unclear, or none is a feature; the message has the table of all
            columns.
    """
    features = [
        column
        for name, column in columns.items()
        if column.kind in FEATURES and name != label_column
    ]
    unclear = table[table["kind"] == "unclear"]
    if len(unclear) or not features:
        doubts = "; ".join(unclear["column"] + ": " + unclear["example"])
        problem = f"columns are unclear: {doubts}" if doubts else "no column is a feature"
        listed = f"The columns are:\n{table.to_string(index=False)}"
        kinds = "data.number_columns=A,B, data.categorical_columns or data.ignore_columns"
        marks = "data.decimal=MARK, data.day_first=true"
        raise DatasetError(f"{problem}\n{listed}\nChoose by --set {marks}, {kinds}")
    return features


def _decides(notation: Notation, cells: pd.Series) -> bool:
    """Return True if the other decimal mark would not read all cells."""
    other = notation._replace(decimal="," if notation.decimal == "." else ".")
    return bool(np.isinf(other.read(cells)).any())


def _find_column(
    column: Column,
    present: pd.Series,
    notations: Sequence[Notation],
    *,
    decimal: str | None,
    day_first: bool | None,
    is_strict: bool,
) -> tuple[Column, str]:
    """Return the kind of a column, with its notation, and what is unclear about it.

    An index without a name numbers the rows in any order, another column in theirs.

    Args:
        column: with its name, and the kind ``number`` if the data's owner has chosen it.
        present: its cells that are not missing.
        notations: those that read all of them.
        decimal: the only decimal mark, or None.
        day_first: as for :func:`find_columns`.
        is_strict: ask wherever two decimal marks read the cells.
    """
    if len(notations) == 2 and (doubt := _doubt(present, notations, is_strict=is_strict)):
        return replace(column, kind="unclear"), doubt
    if notations:
        numbers = notations[0].read(present)
        is_whole = np.array_equal(numbers, np.round(numbers))
        is_different = len(np.unique(numbers)) == len(numbers) > 2
        is_ordered = column.name.startswith("Unnamed: ") or (np.diff(numbers) == 1).all()
        is_index = is_whole and is_different and is_ordered and column.kind != "number"
        kind: Kind = "numbers the rows" if is_index else "number"
        return replace(column, kind=kind, notation=notations[0]), ""
    if column.kind == "number":
        return column, ""  # the cell that is no number is named later
    forms = find_formats(list(present))
    if len(forms) > 1 and day_first is not None:
        forms = [form for form in forms if form.startswith("%d") == day_first]
    if len(forms) == 1:
        return replace(column, kind="date", form=forms[0]), ""
    if forms:
        doubt = f"{present.iloc[0]!r} may have the day or the month first: set data.day_first"
        return replace(column, kind="unclear"), doubt
    single = [readings([cell]) for cell in present]
    if 2 * sum(map(bool, single)) > len(present):
        notation = Counter(itertools.chain.from_iterable(single)).most_common(1)[0][0]
        notation = notation._replace(decimal=decimal or notation.decimal)
        place = present.index[np.isinf(notation.read(present))][0]
        doubt = f"{place}: {present[place]!r} is no number like the others, or as data.decimal says"
        return replace(column, kind="unclear"), doubt
    mostly_differ = present.nunique() > max(MIN_DIFFERENT, len(present) / 2)
    return replace(column, kind="mostly different values" if mostly_differ else "category"), ""


def _doubt(present: pd.Series, notations: Sequence[Notation], *, is_strict: bool) -> str:
    """Return why it matters that two decimal marks read a column, empty if it does not.

    Args:
        present: cells that are not missing.
        notations: both.
        is_strict: it matters: the cells are labels, or other columns of the file have both marks.
            Otherwise it does not if the numbers differ by a factor alone, apart from those that
            stand for missing ones, nor if commas without points make the mark one of thousands,
            such as ``1,234`` beside ``999``.
    """
    texts = present.astype(str).str.strip()
    texts = texts[~texts.str.fullmatch(_SENTINEL)]
    numbers, others = (notation.read(texts) for notation in notations)
    scales = numbers[others != 0] / others[others != 0]
    has_points, has_commas = (texts.str.contains(mark, regex=False).any() for mark in ".,")
    is_scaled = scales.max() < 2 * scales.min()
    if not is_strict and (is_scaled or (has_commas and not has_points)):
        return ""
    return f"{max(texts, key=len)!r} may have a decimal mark or one of thousands"
