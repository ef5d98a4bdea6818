"""Files that are written whole or not at all, archives of tensors, and the lock of a folder."""

import contextlib
import io
import os
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

LOCK = ".lock"
"""Empty file that is never removed: otherwise two processes could lock two different files of that name."""


@contextlib.contextmanager
def atomic_write(path: str | Path, *, tag: str | None = None) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which is renamed to ``path`` at the end.

    It is flushed to disk before. After an error it is removed, and an earlier ``path`` is unchanged.

    Args:
        path: the file.
        tag: suffix of the temporary name; None is a unique one, so that several processes may write the same file. A
            constant leaves at most one temporary file behind a process that is killed, in a :func:`locked` folder.

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
    """Write a file by :func:`atomic_write`."""
    with atomic_write(path, tag=tag) as draft:
        draft.write_bytes(content)


def write_text(path: str | Path, text: str) -> None:
    """Write a file in UTF-8 by :func:`atomic_write`."""
    write_bytes(path, text.encode())


def write_archive(path: str | Path, content: Any, *, tag: str | None = None) -> None:
    """Write tensors, numbers, strings, and dicts and lists of them by ``torch.save`` and :func:`atomic_write`.

    Raises:
        TypeError: values of other types, which :func:`read_archive` could not read.
    """
    buffer = io.BytesIO()  # in memory: on a full disk, PyTorch's writer ends the process
    torch.save(content, buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as error:
        raise TypeError(f"{path} can hold only tensors, numbers, strings, dicts and lists ({error})") from error
    write_bytes(path, buffer.getvalue(), tag=tag)


def read_archive(path: str | Path) -> Any:
    """Return the content of a file of :func:`write_archive`, on the CPU; it cannot run code.

    Raises:
        FileNotFoundError: there is no such file.
        Exception: it is damaged, or of another kind; of many types.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(path)
    with zipfile.ZipFile(path) as archive:
        if archive.testzip() is not None:  # torch.load checks no checksums
            raise zipfile.BadZipFile("a checksum is wrong")
    return torch.load(path, map_location="cpu", weights_only=True)


@contextlib.contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Replace errors of the operating system by the same errors with this path in their message."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing; it ends with the process, however that ends.

    Raises:
        BlockingIOError: another process holds it, or another thread of this one.
        OSError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0, is_singleton=True)
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(f"another process works in {folder}: wait for its end, or choose another") from error
    except OSError as error:
        raise OSError(f"cannot write to {folder} ({error.strerror}); choose another folder") from error
    try:
        yield
    finally:
        lock.release()
