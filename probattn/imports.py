"""Imports of libraries that change the state of the process."""

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pyro  # noqa: F401 - so that its warning filters, and those of torch and numpy below it, stay


@contextmanager
def without_side_effects() -> Iterator[None]:
    """Undo what imports inside do to warning filters, environment variables and Python's random state."""
    environment, random_state = dict(os.environ), random.getstate()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            random.setstate(random_state)
            for name in set(os.environ) - set(environment):
                del os.environ[name]
            os.environ.update(environment)
