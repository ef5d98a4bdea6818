"""Imports of libraries that are optional, and of those that change the state of the process."""

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ImportError):
    """A library of an extra is not installed; the message gives the command that installs it."""


@contextmanager
def extra(name: str, *, needed_by: str) -> Iterator[None]:
    """Import libraries of an extra inside: where one is missing, the error gives the command that
    installs it.

    Args:
        name: an extra of this package, such as ``"text"``.
        needed_by: subject of the message, such as ``"psis_khat"``.

    Raises:
        MissingExtraError: a library imported inside is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = f"{needed_by} needs {error.name}, which is not installed"
        command = f"pip install 'probattn[{name}]'"
        raise MissingExtraError(f"{missing}: {command}", name=error.name) from error


@contextmanager
def without_side_effects() -> Iterator[None]:
    """Undo what imports inside do to warning filters, environment variables and Python's random
    state."""
    import pyro  # noqa: F401 - its warning filters, and those of torch and numpy below it, stay

    environment = dict(os.environ)
    random_state = random.getstate()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            random.setstate(random_state)
            os.environ.clear()
            os.environ.update(environment)
