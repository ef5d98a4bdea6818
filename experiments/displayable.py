"""Text of unknown origin, such as names of classes, files and runs, made safe to display, also in a
spreadsheet."""

import functools
import re
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Texts that a spreadsheet computes, and those of them that are numbers.
FORMULA, NUMBER = re.compile(r"\s*[=+@-]"), re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?")


def displayable(text: str) -> str:
    r"""Return text with escapes, such as ``\x1b``, in place of what is no visible character.

    These are control characters, which a terminal obeys and SVG cannot hold; controls of the
    direction of writing, which reorder what surrounds them; surrogates, which stand for bytes of a
    file name that are not UTF-8; and characters that Unicode does not assign. Spaces of any kind
    and joiners, which some scripts and emoji need, stay.
    """
    return "".join(map(_shown, text))


@functools.cache
def _shown(character: str) -> str:
    is_visible = (
        character.isprintable()
        or character in "\u200c\u200d"
        or unicodedata.category(character) == "Zs"
    )
    return character if is_visible else ascii(character)[1:-1]


def csv_text(table: "pd.DataFrame") -> str:
    """Return a table as CSV, whose texts are displayable and are no formulas to a spreadsheet.

    A text that would be one begins with an apostrophe.
    """
    safe = table.rename(columns=_cell)
    for position, kind in enumerate(table.dtypes):
        if kind.kind not in "biuf":
            safe.isetitem(position, table.iloc[:, position].map(_cell))
    return safe.to_csv(index=False, lineterminator="\n")


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = displayable(value)
    is_formula = FORMULA.match(unicodedata.normalize("NFKC", text)) and not NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text
