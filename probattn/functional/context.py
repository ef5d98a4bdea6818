"""Values of context variables inside a block; each thread has its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


@contextmanager
def bound(variable: ContextVar, value: Any) -> Iterator[Any]:
    """Give a context variable a value inside, and the one before on exit."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
