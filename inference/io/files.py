"""Files that are written whole or not at all, and read if they are regular; the lock of a
folder."""

import hashlib
import io
import json
import os
import stat
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

LOCK = ".lock"
"""Empty file that is never removed: otherwise two processes could lock two different files of that
name."""

MAX_BYTES = 2**36
MAX_JSON = 2**28
"""Largest files that are read: of weights, and of JSON."""


def write_bytes(path: str | Path, content: bytes, *, tag: str | None = None) -> None:
    """Write a file under a temporary name in the same folder, flush it to disk, and rename it.

    After an error the temporary file is removed, and an earlier ``path`` is unchanged.

    Args:
        path: the file.
        content: its bytes.
        tag: suffix of the temporary name; None is a unique one, so that several processes may write
            the same file. A constant leaves at most one temporary file behind a process that is
            killed, in a :func:`locked` folder.
    """
    write_files({Path(path): content}, tag=tag)


def write_files(files: Mapping[Path, bytes], *, tag: str | None = None) -> None:
    """Write several files as :func:`write_bytes` does one: all are on disk before the first is
    renamed.

    Raises:
        OSError: a file cannot be written; names it.
    """
    drafts = {path: path.with_name(f".{path.name}.{tag or uuid.uuid4().hex}") for path in files}
    try:
        for path, draft in drafts.items():
            with naming(path):
                draft.write_bytes(files[path])
                with draft.open("rb") as file:
                    os.fsync(file.fileno())
        for path, draft in drafts.items():
            with naming(path):
                draft.replace(path)
    finally:
        for draft in drafts.values():
            with suppress(OSError):
                draft.unlink()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file in errors of the system inside, as those of a full disk do not."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def regular_file(path: Path) -> Path:
    """Return a path that may be read to its end: that of a regular file, through links, of a
    bounded size.

    Raises:
        OSError: there is no such file.
        ValueError: a device, a pipe, a folder, or a file that is too large.
    """
    status = path.stat()
    limit = MAX_JSON if path.suffix == ".json" else MAX_BYTES
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is no regular file")
    if status.st_size > limit:
        raise ValueError(f"{path} has {status.st_size:,} bytes, more than {limit:,}")
    return path


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a :func:`regular_file` in hexadecimal digits."""
    with regular_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def undamaged(
    path: str | Path,
    error: type[Exception],
    *,
    passing: type[Exception] | tuple[type[Exception], ...] = (),
    advice: str = "restore it, or train the run again",
) -> Iterator[None]:
    """Make any error inside, of a file that another program may have written, one of a type that
    names the file.

    Those of the types ``passing`` stay as they are.
    """
    try:
        yield
    except passing:
        raise
    except Exception as reason:  # of many types
        problem = " ".join(str(reason).split())
        if hasattr(reason, "errors"):  # pydantic's
            first = reason.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise error(f"{path} is missing or damaged ({problem}): {advice}") from reason


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError, ValueError: as for :func:`regular_file`; the file is no JSON.
    """
    try:
        return json.loads(regular_file(path).read_bytes())
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error


def write_archive(path: str | Path, content: Any, *, tag: str | None = None) -> None:
    """Write tensors, numbers, strings, and dicts and lists of them by ``torch.save`` and
    :func:`write_bytes`.

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
    with zipfile.ZipFile(regular_file(Path(path))) as archive:
        if archive.testzip() is not None:  # torch.load checks no checksums
            raise zipfile.BadZipFile("a checksum is wrong")
    return torch.load(path, map_location="cpu", weights_only=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing; it ends with the process,
    however that ends.

    Raises:
        filelock.Timeout: another process holds it, or another thread of this one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(folder / LOCK, timeout=0, is_singleton=True))
        except NotImplementedError as error:
            raise OSError(
                f"{folder} lies on a file system without locks: choose another folder"
            ) from error
        yield
