"""SHA-256 digests: inside a file, of its own bytes, and of the values that a result was computed from."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

MARK = "probattn-sha256:"
UNSEALED = MARK + 64 * "0"
"""Text that a file format has room for, such as a metadata entry or a comment, and that :func:`seal` fills in."""

MOST = 16
"""Number of digests in a file at most, such as those of the texts inside a program; each costs a pass over the file."""


def seal(content: bytes) -> bytes:
    """Replace :data:`UNSEALED` in the bytes of a file by their digest; the length stays the same.

    Raises:
        ValueError: the bytes do not contain it, or more than once, or more than :data:`MOST` digests.
    """
    if content.count(MARK.encode()) > MOST:
        raise ValueError(f"a file contains at most {MOST} digests, got {content.count(MARK.encode())}")
    if content.count(UNSEALED.encode()) != 1:
        raise ValueError(f"a file that is sealed contains {UNSEALED!r} once, got {content.count(UNSEALED.encode())}")
    return content.replace(UNSEALED.encode(), (MARK + hashlib.sha256(content).hexdigest()).encode())


def is_intact(content: bytes) -> bool:
    """Return True if the bytes of a file are those that :func:`seal` returned; False without a digest, too."""
    mark, start, view = MARK.encode(), -1, memoryview(content)  # slices of a view are no copies
    if content.count(mark) > MOST:
        return False
    while (start := content.find(mark, start + 1)) >= 0:
        end = start + len(UNSEALED)
        found, unsealed = content[start + len(mark) : end], UNSEALED.encode()
        digest = hashlib.sha256(view[:start])
        digest.update(unsealed)
        digest.update(view[end:])
        if found == digest.hexdigest().encode():
            return True
    return False


def digest(value: Any) -> str:
    """Return the SHA-256 digest of a value in hexadecimal digits; equal values have equal digests in every process.

    Args:
        value: tensors, arrays, numbers, strings, bytes, paths, None, and mappings (in any order), sequences and data
            classes of them. Tensors count with dtype and shape, not with their device.

    Raises:
        TypeError: a value of another type.
    """
    state = hashlib.sha256()
    _update(state, value)
    return state.hexdigest()


def _update(state: Any, value: Any) -> None:
    """Add a value to a digest, with its type and length, so that no two different values add the same bytes."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        _update_bytes(state, f"tensor {value.dtype} {tuple(value.shape)}", value.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray):
        _update_bytes(state, f"array {value.dtype.str} {value.shape}", np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        _update(state, {field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, Mapping):
        _update_bytes(state, f"mapping {len(value)}", b"")
        for key in sorted(value, key=repr):
            _update(state, key)
            _update(state, value[key])
    elif isinstance(value, list | tuple):
        _update_bytes(state, f"sequence {len(value)}", b"")
        for each in value:
            _update(state, each)
    elif isinstance(value, bytes):
        _update_bytes(state, "bytes", value)
    elif isinstance(value, str | Path):
        _update_bytes(state, "text", str(value).encode("utf-8", "surrogatepass"))
    elif value is None or isinstance(value, bool | int | float):
        _update_bytes(state, type(value).__name__, repr(value).encode())
    else:
        raise TypeError(f"a {type(value).__name__} has no digest")


def _update_bytes(state: Any, kind: str, content: Any) -> None:
    state.update(f"{kind} {len(content)}\n".encode())
    state.update(content)
