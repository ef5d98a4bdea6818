"""Numbers as people write them: decimal commas, thousands separators, currencies and units."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

LARGEST = 1e18
"""Largest magnitude of a number: its square is finite in single precision."""
MISSING = frozenset({"", "-", "--", "?", "na", "n/a", "nan", "<na>", "null", "none"})
"""Cells, in lower case, that stand for a missing number."""

_SPELLINGS = str.maketrans("\u2212\u2013\u00a0\u202f\u2009\u2019", "--   '")
_CELL = re.compile(
    r"(?P<sign>[+-]?) ?(?P<before>[^\w\s.,'+-]*|[A-Z]{3} ) ?(?P<inner>-?)(?P<digits>\d[\d.,' ]*|[.,]\d+)"
    r"(?P<exponent>[eE][+-]?\d+)? ?(?P<after>[^\d\s.,'+-][^\d]*)?"
)
_DIGITS = {
    ".": re.compile(r"\d+(\.\d*)?|\.\d+|\d{1,3}([,' ])\d{3}(\2\d{3})*(\.\d*)?"),
    ",": re.compile(r"\d+(,\d*)?|,\d+|\d{1,3}([.' ])\d{3}(\2\d{3})*(,\d*)?"),
}


class Notation(NamedTuple):
    """How a column writes its numbers: the decimal mark, and the currency or unit around every number."""

    decimal: str = "."
    before: str = ""
    after: str = ""

    def read(self, cell: Any) -> float | None:
        """Return the number of a cell, NaN if it is missing, and None if it is no such number."""
        if is_missing(cell):
            return float("nan")
        if isinstance(cell, int | float):
            return float(cell) if abs(cell) <= LARGEST else None
        match = _CELL.fullmatch(str(cell).strip().translate(_SPELLINGS))
        if match is None or _units(match) != (self.before, self.after):
            return None
        digits = match["digits"].strip()
        if not _DIGITS[self.decimal].fullmatch(digits):
            return None
        groups = dict.fromkeys(map(ord, "', " if self.decimal == "." else "'. "))
        value = float(digits.translate(groups).replace(",", ".") + (match["exponent"] or ""))
        return None if value > LARGEST else -value if "-" in (match["sign"], match["inner"]) else value


def find_notations(cells: Sequence[str], *, decimal: str | None = None) -> dict[Notation, np.ndarray]:
    """Return the notations that read every cell that is not missing, with the numbers, NaN where they are missing.

    Args:
        cells: column of a table.
        decimal: the decimal mark, ``"."`` or ``","``; None tries both.

    Returns:
        None for a column that is not of numbers throughout; two where ``1,234`` may be 1234 or 1.234.
    """
    first = next((cell for cell in cells if not is_missing(cell)), "")
    match = _CELL.fullmatch(first.strip().translate(_SPELLINGS))
    readings: dict[Notation, np.ndarray] = {}
    for mark in (decimal,) if decimal else (".", ","):
        numbers = [Notation(mark, *_units(match)).read(cell) for cell in cells] if match else [None]
        if None not in numbers and not any(np.array_equal(numbers, each, equal_nan=True) for each in readings.values()):
            readings[Notation(mark, *_units(match))] = np.array(numbers, dtype=float)
    return readings


def is_missing(cell: Any) -> bool:
    """Return True for a cell that holds no number, such as an empty one."""
    return cell is None or str(cell).strip().lower() in MISSING


def _units(match: re.Match[str]) -> tuple[str, str]:
    return match["before"].strip(), (match["after"] or "").strip()
