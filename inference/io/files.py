"""Files that are written whole or not at all, archives of tensors, and the lock of a folder."""

import io
import os
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

LOCK = ".lock"
"""Empty file that is never removed: otherwise two processes could lock two different files of that name."""


def write_bytes(path: str | Path, content: bytes, *, tag: str | None = None) -> None:
    """Write a file under a temporary name in the same folder, flush it to disk, and rename it.

    After an error the temporary file is removed, and an earlier ``path`` is unchanged.

    Args:
        path: the file.
        content: its bytes.
        tag: suffix of the temporary name; None is a unique one, so that several processes may write the same file. A
            constant leaves at most one temporary file behind a process that is killed, in a :func:`locked` folder.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{tag or uuid.uuid4().hex}")
    try:
        draft.write_bytes(content)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_archive(path: str | Path, content: Any, *, tag: str | None = None) -> None:
    """Write tensors, numbers, strings, and dicts and lists of them by ``torch.save`` and :func:`write_bytes`.

    Raises:
        pickle.UnpicklingError: values of other types, which :func:`read_archive` could not read.
    """
    buffer = io.BytesIO()  # in memory: on a full disk, PyTorch's writer ends the process
    torch.save(content, buffer)
    buffer.seek(0)
    torch.load(buffer, weights_only=True)  # fails now, and not when it is read again
    write_bytes(path, buffer.getvalue(), tag=tag)


def read_archive(path: str | Path) -> Any:
    """Return the content of a file of :func:`write_archive`, on the CPU; it cannot run code.

    Raises:
        Exception: it is missing, damaged, or of another kind; of many types.
    """
    with zipfile.ZipFile(path) as archive:
        if archive.testzip() is not None:  # torch.load checks no checksums
            raise zipfile.BadZipFile("a checksum is wrong")
    return torch.load(path, map_location="cpu", weights_only=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing; it ends with the process, however that ends.

    Raises:
        filelock.Timeout: another process holds it, or another thread of this one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK, timeout=0, is_singleton=True):
        yield
