"""Files that appear in one step."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A path in the same folder to write to, renamed to ``path`` at the end, so that no reader sees half of a file.

    Its name is unique, so that processes that write the same file do not meet. After an error nothing is left of it,
    and an earlier ``path`` is as it was.
    """
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
