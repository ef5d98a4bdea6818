"""A cache of decoded data on disk, which may be lost or damaged at any time."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from probattn.inference.io.atomic_write import atomic_write

FOLDER = ".probattn-cache"
"""The cache's folder in the root folder of the data sets; it can be deleted at any time."""


def read_or_compute(path: Path, *, stamp: Any, compute: Callable[[], Any], check: Callable[[Any], object]) -> Any:
    """Return the cached value of ``path`` if it is intact and has this stamp; else compute it and cache it.

    A cache that cannot be written, in a read-only or full folder, is no error. The file is written atomically.

    Args:
        path: the cached file; its folder is created if it is missing, but not the folder above it.
        stamp: identifies the source of the value; numbers, strings, lists and dicts.
        compute: returns the value: tensors, numbers, strings, lists, tuples and dicts.
        check: raises any exception if a cached value is damaged.
    """
    with contextlib.suppress(Exception):  # damage shows in many ways, and the value can always be computed again
        cached = torch.load(path, weights_only=True)
        if cached["stamp"] == stamp:
            check(cached["value"])
            return cached["value"]
    value = compute()
    with contextlib.suppress(OSError, RuntimeError):  # torch.save reports a failing disk as RuntimeError
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as unfinished:
            torch.save({"stamp": stamp, "value": value}, unfinished)
    return value
