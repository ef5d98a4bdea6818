"""Atomic writes: a file appears in one step, or not at all with an error that names it."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: str | Path, *, tag: str | None = None) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which is renamed to ``path`` at the end.

    It is flushed to disk before it is renamed, so that no reader sees half of a file. After an error it is removed and
    an earlier ``path`` is unchanged; a process that is killed leaves it.

    Args:
        path: the file.
        tag: suffix of the temporary name, by default a unique one, so that several processes may write the same file.
            A constant one leaves at most one temporary file, in folders that are
            :func:`~probattn.inference.io.lock.locked`.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{tag or uuid.uuid4().hex}")
    try:
        with name_path_in_errors(path):
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_bytes(path: str | Path, content: bytes, *, tag: str | None = None) -> None:
    """Write a file by :func:`atomic_write`.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    with atomic_write(path, tag=tag) as draft:
        draft.write_bytes(content)


def write_text(path: str | Path, text: str) -> None:
    """Write a file in UTF-8 by :func:`atomic_write`.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    write_bytes(path, text.encode())


@contextlib.contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Replace errors of the operating system by the same errors with this path in their message."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
