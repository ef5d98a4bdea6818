"""One process at a time works in a run's folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
"""An empty file that stays in the folder: were it removed, two processes could lock two files of that name."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run's folder, which is made where it is missing.

    The system lets go of it however the process ends. A thread that holds it may take it again.

    Raises:
        BlockingIOError: another process holds it, or another thread of this one.
        OSError: it cannot be written.
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
