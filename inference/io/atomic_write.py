"""Files that appear in one step, or not at all with an error that names them."""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def atomic_write(path: str | Path, *, tag: str | None = None) -> Iterator[Path]:
    """A path in the same folder to write to, renamed to ``path`` at the end, so that no reader sees half of a file.

    It is on the disk before it is renamed. After an error nothing is left of it, and an earlier ``path`` is as it was;
    a process that is killed leaves it.

    Args:
        path: the file.
        tag: the end of its name, by default a unique one, so that processes that write the same file do not meet.
            One that is always the same leaves at most one of them behind, in folders that are
            :func:`~probattn.inference.io.lock.locked`.

    Raises:
        OSError: it cannot be written; ``path`` is named.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{tag or uuid.uuid4().hex}")
    try:
        with name_path_in_errors(path):
            yield unfinished
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Errors of the system inside are about this file, and say so."""
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
