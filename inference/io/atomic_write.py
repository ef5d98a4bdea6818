"""Atomic writes: a file appears in one step, or not at all with an error that names it."""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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


@contextlib.contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Replace errors of the operating system by the same errors with this path in their message."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = error if isinstance(error, OSError) else error.__context__  # torch.save: "unexpected pos 64 vs 0"
        if not isinstance(reason, OSError) or reason.strerror is None:
            raise
        raise OSError(reason.errno, reason.strerror, str(path)) from error


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, with NaN and infinities as null.

    Raises:
        OSError: the file cannot be written.
    """
    clean = json.loads(json.dumps(content), parse_constant=lambda _: None)
    with atomic_write(path, tag="part") as unfinished:
        unfinished.write_text(json.dumps(clean, indent=2) + "\n", encoding="utf-8")
