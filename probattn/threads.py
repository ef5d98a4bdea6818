"""The lock of what a process has once: Pyro's handlers and parameter store, PyTorch's generator,
modes of modules."""

import os
import threading
from contextlib import ContextDecorator
from typing import Any, Self

from pyro.poutine.messenger import Messenger

from probattn.pyro_internals import HANDLERS


class _Lock(ContextDecorator):
    """Lock that its thread may take again, as a context manager and a decorator."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Free a forked process of a lock, and of handlers, that another thread of its parent
        had."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()
            HANDLERS.clear()


one_thread_at_a_time = _Lock()
"""Let one thread at a time into a function or a block; it may enter again, and other threads wait.

All functions of this library that run Pyro programs or switch modes have it as a decorator. Take it
yourself around Pyro's own tools, such as ``SVI`` and ``Predictive``, where other threads use them
or this library:

>>> with one_thread_at_a_time:
...     loss = svi.step(x, y)  # doctest: +SKIP
"""

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=one_thread_at_a_time.after_fork)


class LockedMessenger(Messenger):
    """Handler that holds the lock while it is active, since Pyro's stack of handlers is one for all
    threads."""

    def __enter__(self) -> Self:
        one_thread_at_a_time.__enter__()
        try:
            return super().__enter__()
        except BaseException:
            one_thread_at_a_time.__exit__()
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            one_thread_at_a_time.__exit__()
