"""Numbers as people write them: decimal commas, thousands separators, currencies and units."""

import contextlib
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

LARGEST = 1e18  # magnitude of a number: its square is finite in single precision
# Cells, in lower case, that stand for a missing number.
MISSING = frozenset(
    ("", "-", "--", "\u2013", "\u2014", "\u2212", ".", "..", "?")
    + ("na", "n/a", "n.a.", "<na>", "nan", "-nan", "nat")
    + ("nil", "null", "(null)", "<null>", "none")
    # errors of spreadsheets
    + ("#n/a", "#na", "#nv", "#div/0!", "#name?", "#null!", "#num!", "#ref!", "#value!")
)
_SPELLINGS = str.maketrans("\u2212\u2013\u00a0\u202f\u2009\u2019", "--   '")
_CELL = re.compile(
    r"(?P<sign>[+-]?) ?(?P<before>[^\w\s.,'+-]*|[A-Z]{3} ) ?(?P<inner>-?)(?P<digits>\d[\d.,' "
    r"]*|[.,]\d+)"
    r"(?P<exponent>([eE][+-]?\d+)?) ?(?P<after>([^\d\s.,'+-][^\d]*)?)"
)
# Groups of three digits do not begin with 0: 0,616 has a decimal comma.
_DIGITS = {
    ".": re.compile(r"\d+(\.\d*)?|\.\d+|[1-9]\d{0,2}([,' ])\d{3}(\2\d{3})*(\.\d*)?"),
    ",": re.compile(r"\d+(,\d*)?|,\d+|[1-9]\d{0,2}([.' ])\d{3}(\2\d{3})*(,\d*)?"),
}


class Notation(NamedTuple):
    """Notation of the numbers of a column: the decimal mark, and the currency or unit around every
    number."""

    decimal: str = "."
    before: str = ""
    after: str = ""

    def read(self, cells: Sequence[Any]) -> np.ndarray:
        """Return the numbers of cells, float64 (n,): NaN where one is missing, infinity where it is
        no such number."""
        return np.array(
            [math.nan if is_missing(cell) else self._number(cell) for cell in cells], dtype=float
        )

    def _number(self, cell: Any) -> float:
        if self == (".", "", "") or not isinstance(cell, str):
            with contextlib.suppress(TypeError, ValueError):
                number = float(cell)  # most cells of most tables, and much faster
                return number if abs(number) <= LARGEST else math.inf
        match = _match(cell)
        if (
            match is None
            or not _DIGITS[self.decimal].fullmatch(match["digits"].strip())
            or self[1:] != _units(match)
        ):
            return math.inf
        separators = dict.fromkeys(map(ord, "', " if self.decimal == "." else "'. "))
        number = float(match["digits"].translate(separators).replace(",", ".") + match["exponent"])
        if number > LARGEST:
            return math.inf
        is_negative = "-" in (match["sign"], match["inner"])
        return -number if is_negative else number


def readings(cells: Sequence[str], *, decimal: str | None = None) -> dict[Notation, np.ndarray]:
    """Return the notations that read every cell that is not missing, with the numbers, NaN where
    they are missing.

    Args:
        cells: column of a table.
        decimal: decimal mark, ``"."`` or ``","``; None tries both.

    Returns:
        Nothing for a column that is not of numbers throughout; two notations where ``1,234`` may be
        1234 or 1.234.
    """
    match = _match(next((cell for cell in cells if not is_missing(cell)), ""))
    notations = [Notation(mark, *_units(match)) for mark in decimal or ".,"] if match else []
    possible = {
        notation: numbers
        for notation in notations
        if not np.isinf(numbers := notation.read(cells)).any()
    }
    arrays = list(possible.values())
    if len(arrays) == 2 and np.array_equal(arrays[0], arrays[1], equal_nan=True):
        possible.popitem()
    return possible


def is_missing(cell: Any) -> bool:
    """Return True for a cell that holds no number, such as an empty one."""
    return cell is None or str(cell).strip().lower() in MISSING


def _match(cell: Any) -> re.Match[str] | None:
    return _CELL.fullmatch(str(cell).strip().translate(_SPELLINGS))


def _units(match: re.Match[str]) -> tuple[str, str]:
    return match["before"].strip(), match["after"].strip()
