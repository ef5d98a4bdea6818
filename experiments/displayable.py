"""Text of unknown origin, such as names of classes, files and runs, made safe to display."""

import codecs
import unicodedata

ASCII = {"±": "+-", "×": "x", "–": "-", "−": "-", "…": "...", "↑": "^", "↓": "v", "→": "->", "³": "^3", "\u00a0": " "}
"""Substitutes of our symbols where an output cannot encode them."""
ENCODABLE = "probattn.encodable"
"""Name of the error handler of outputs that displays :data:`ASCII`, or an escape, for what they cannot encode."""


def displayable(text: str) -> str:
    r"""Return text with escapes, such as ``\x1b``, in place of what is no visible character.

    These are control characters, which a terminal obeys and SVG cannot hold; controls of the direction of writing,
    which reorder what surrounds them; surrogates, which stand for bytes of a file name that are not UTF-8; and
    characters that Unicode does not assign. Spaces of any kind and joiners, which some scripts and emoji need, stay.
    """
    if text.isprintable():
        return text
    return "".join(character if _is_visible(character) else ascii(character)[1:-1] for character in text)


def _is_visible(character: str) -> bool:
    return character.isprintable() or character in "\u200c\u200d" or unicodedata.category(character) == "Zs"


def _encodable(error: UnicodeError) -> tuple[str, int]:
    text = error.object[error.start : error.end]
    return "".join(ASCII.get(character, ascii(character)[1:-1]) for character in text), error.end


codecs.register_error(ENCODABLE, _encodable)
