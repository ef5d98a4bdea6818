"""Text of unknown origin, such as names of classes, files and runs, made safe to display."""

import unicodedata


def displayable(text: str) -> str:
    r"""Return text with escapes, such as ``\x1b``, in place of what is no visible character.

    These are control characters, which a terminal obeys and SVG cannot hold; controls of the direction of writing,
    which reorder what surrounds them; surrogates, which stand for bytes of a file name that are not UTF-8; and
    characters that Unicode does not assign. Spaces of any kind and joiners, which some scripts and emoji need, stay.
    """
    return "".join(character if _is_visible(character) else ascii(character)[1:-1] for character in text)


def _is_visible(character: str) -> bool:
    return character.isprintable() or character in "\u200c\u200d" or unicodedata.category(character) == "Zs"
