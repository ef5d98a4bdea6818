"""Values of which each thread has its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadValue(threading.local, Generic[T]):
    """A value of which each thread has its own, and which :func:`torch.compile` reads without a graph break.

    PyTorch traces this attribute, and compiles again where it differs. PyTorch 2.11 cannot trace ``ContextVar.get``,
    and no version notices changes of a ``threading.local`` that has the initial value as a class attribute. Tasks of
    ``asyncio`` in one thread share the value: code inside :meth:`replaced` must not await.

    Args:
        value: initial value in every thread.
    """

    def __init__(self, value: T) -> None:
        self.value = value

    @contextmanager
    def replaced(self, value: T) -> Iterator[None]:
        """Have another value inside, in this thread."""
        previous, self.value = self.value, value
        try:
            yield
        finally:
            self.value = previous
