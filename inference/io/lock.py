"""Lock of a run's folder: one process at a time works in it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
"""Empty file that is never removed: otherwise two processes could lock two different files of that name."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing.

    The operating system releases the lock however the process ends. A thread that holds it may acquire it again.

    Raises:
        BlockingIOError: another process holds it, or another thread of this one.
        OSError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0, is_singleton=True)
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(
            f"another process works in {folder}; wait until it has ended, or choose another folder"
        ) from error
    except OSError as error:
        raise OSError(f"cannot write to {folder} ({error.strerror}); choose another folder") from error
    try:
        yield
    finally:
        lock.release()
