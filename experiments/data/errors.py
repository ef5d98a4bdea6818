"""Errors of data and of files that others have made, and the message of a name that is not known."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError


class DatasetError(RuntimeError):
    """A data set is missing, incomplete or damaged; the message names the place and the remedy."""


class UntrustedCodeError(ValueError):
    """A folder names code that is not this library's, which is not run unless the caller trusts it."""

    flag = "--trust-code"


@contextmanager
def undamaged(
    path: Path, error: type[Exception] = DatasetError, *, advice: str = "restore it, or train the run again"
) -> Iterator[None]:
    """Make any error inside, of a file that another program may have written, one of a type that names the file."""
    try:
        yield
    except (UntrustedCodeError, ImportError, DatasetError):
        raise
    except Exception as reason:  # of many types
        problem = " ".join(str(reason).split())
        if isinstance(reason, ValidationError):
            first = reason.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise error(f"{path} is missing or damaged ({problem}): {advice}") from reason


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
    return f"unknown {kind} {name!r}; {guess}{listing}".rstrip()
