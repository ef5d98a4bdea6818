"""A cache of decoded data on disk, which may be lost or damaged at any time."""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from probattn.inference.io.files import read_archive, write_archive

FOLDER = ".probattn-cache"  # in the root folder of the data sets; it can be deleted at any time


def read_or_compute(path: Path, *, sources: Iterable[Path], compute: Callable[[], Any]) -> Any:
    """Return the cached value of ``path`` if it is intact and its sources are unchanged; else compute and cache it.

    A cache that cannot be written, in a read-only or full folder, is no error.

    Args:
        path: the cached file; its folder is created if it is missing, but not the folder above it.
        sources: files and folders, of which size and modification time are compared; some may be missing.
        compute: returns the value: tensors, numbers, strings, lists, tuples and dicts.
    """
    stamp = [(str(source), source.stat().st_size, source.stat().st_mtime_ns) for source in sources if source.exists()]
    with contextlib.suppress(Exception):  # missing or damaged, which raises errors of many types
        cached = read_archive(path)
        if cached["stamp"] == stamp:
            return cached["value"]
    value = compute()
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        write_archive(path, {"stamp": stamp, "value": value})
    return value
