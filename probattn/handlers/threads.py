"""Threads: Pyro's state belongs to the process, so one thread at a time uses it and the others wait."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from pyro.poutine.messenger import Messenger

from probattn.handlers.stored import stored_sites
from probattn.pyro_compat import clear_handlers, restored_handlers

_LOCK = threading.RLock()


@contextmanager
def exclusive() -> Iterator[None]:
    """Keep other threads out of Pyro's state inside: handlers, settings, and the modes of modules that run under them.

    Calls nest. After any exception, an interrupt included, Pyro's handler stack is what it was before.
    """
    with _LOCK, restored_handlers():
        yield


class Handler(Messenger):
    """Base class of effect handlers: :func:`exclusive` while it is active, and without effect under stored sites."""

    def __enter__(self) -> Self:
        if stored_sites() is not None:
            return self
        _LOCK.acquire()
        try:
            with restored_handlers():
                return super().__enter__()
        except BaseException:
            _LOCK.release()
            raise

    def __exit__(self, *error: Any) -> bool | None:
        if stored_sites() is not None:
            return None
        try:
            return super().__exit__(*error)
        finally:
            _LOCK.release()


def _forget_lost_threads() -> None:
    """Free the lock in a forked process if another thread held it, which does not exist there."""
    global _LOCK
    if _LOCK.acquire(blocking=False):
        _LOCK.release()
    else:
        _LOCK = threading.RLock()
        clear_handlers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lost_threads)
