"""A cache of decoded data on disk, which may be lost or damaged at any time."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probattn.inference.io.files import read_archive, write_archive

FOLDER = ".probattn-cache"
"""The cache's folder in the root folder of the data sets; it can be deleted at any time."""


def read_or_compute(path: Path, *, stamp: Any, compute: Callable[[], Any]) -> Any:
    """Return the cached value of ``path`` if it is intact and has this stamp; else compute it and cache it.

    A cache that cannot be written, in a read-only or full folder, is no error.

    Args:
        path: the cached file; its folder is created if it is missing, but not the folder above it.
        stamp: identifies the source of the value and its form; numbers, strings, lists and dicts.
        compute: returns the value: tensors, numbers, strings, lists, tuples and dicts.
    """
    with contextlib.suppress(Exception):  # missing or damaged, which raises errors of many types
        cached = read_archive(path)
        if cached["stamp"] == stamp:
            return cached["value"]
    value = compute()
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        write_archive(path, {"stamp": stamp, "value": value})
    return value
