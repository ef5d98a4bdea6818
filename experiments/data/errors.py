"""Errors of data and of code of others, and the message of a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


class DatasetError(RuntimeError):
    """A data set is missing, incomplete or damaged; the message names the place and the remedy."""


class UntrustedCodeError(ValueError):
    """A folder names code that is not this library's, which is not run unless the caller trusts
    it."""

    flag = "--trust-code"


def unknown_name(kind: str, name: str, known: Iterable[str], *, listing: str = "") -> str:
    """Return the message of an unknown name, which suggests similar ones.

    Args:
        kind: what the name is of, such as ``"preset"``.
        name: the unknown name.
        known: the known names; the message names all if they are few.
        listing: how to list all of them, or to name others.
    """
    known = list(known)
    similar = get_close_matches(name, known, n=3, cutoff=0.5) or (known if len(known) <= 10 else [])
    guess = f"did you mean {' or '.join(similar)}? " if similar else ""
    return f"unknown {kind} {name!r:.99}; {guess}{listing}".rstrip()
