"""Text of unknown origin, such as names of classes, files and runs, made safe to display."""

import codecs
import unicodedata

JOINERS = "\u200c\u200d"
"""Invisible characters that words of some scripts and emoji need."""
ASCII = {"±": "+-", "×": "x", "–": "-", "−": "-", "…": "...", "↑": "^", "↓": "v", "→": "->", "³": "^3", "\u00a0": " "}
"""Substitutes of our symbols where an output cannot encode them."""
ENCODABLE = "probattn.encodable"
"""Name of the error handler of outputs that displays :data:`ASCII`, or an escape, for what they cannot encode."""


def displayable(text: str) -> str:
    r"""Return text with escapes, such as ``\x1b``, in place of what is no visible character.

    These are control characters, which a terminal obeys and SVG cannot hold; controls of the direction of writing,
    which reorder what surrounds them; surrogates, which stand for bytes of a file name that are not UTF-8; and
    characters that Unicode does not assign. Spaces of any kind stay.
    """
    if text.isprintable():
        return text
    return "".join(character if _is_visible(character) else _escape(character) for character in text)


def _is_visible(character: str) -> bool:
    return character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return ascii(character)[1:-1]


def _encodable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    failed = error.object[error.start : error.end]
    return "".join(ASCII.get(character, _escape(character)) for character in failed), error.end


codecs.register_error(ENCODABLE, _encodable)
