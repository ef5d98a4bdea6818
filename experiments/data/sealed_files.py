"""JSON files that are written whole or not at all, with the digest of their content, and digests of values."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from probattn.experiments.data.errors import DatasetError
from probattn.inference.io.files import write_bytes

PREPROCESSING = "preprocessing.json"
"""File in a run's folder: what turns new inputs into those of its network, and the names of its classes.

=========  =========================================================================================================
``kind``   keys besides ``classes``
=========  =========================================================================================================
images     ``shape`` (C, H, W), ``mean`` and ``std`` per channel of pixels in 0..1
texts      none; the tokens are in ``tokenizer.json`` or ``encoder.json``
table      ``columns`` (see :class:`~probattn.experiments.data.tables.encoding.TableEncoding`), ``label_column``, and
           for regression, where ``classes`` is empty, ``label_mean`` and ``label_std`` of the training labels
=========  =========================================================================================================
"""


class DamagedFileError(RuntimeError):
    """A file that is damaged, was edited, or was not written by this version of the library."""


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, with the digest of its content as the entry ``digest``; NaN becomes null."""
    clean = json.loads(json.dumps(content), parse_constant=lambda _: None)
    write_bytes(path, (json.dumps({"digest": digest(clean), **clean}, indent=2) + "\n").encode(), tag="part")


def read_json(path: str | Path, *, advice: str = "restore it from a copy, or make it again") -> dict[str, Any]:
    """Return the content of a file that :func:`write_json` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedFileError: it has changed since it was written; the message ends with ``advice``.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        intact = content.pop("digest") == digest(content)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise DamagedFileError(f"{path} is damaged, or was not written by this version: {advice}")
    return content


def digest(value: Any) -> str:
    """Return the SHA-256 digest of a value in hexadecimal digits; equal values have equal digests in every process.

    Args:
        value: tensors, bytes, values of JSON, and mappings (in any order) and sequences of them. Tensors count with
            dtype and shape, not with their device.
    """
    kind = "sequence" if isinstance(value, list | tuple) else type(value).__name__
    if isinstance(value, Mapping):
        value = [[key, value[key]] for key in sorted(value, key=repr)]
    if isinstance(value, torch.Tensor):
        content = f"{value.dtype} {tuple(value.shape)} ".encode() + value.cpu().numpy().tobytes()
    elif isinstance(value, list | tuple):
        content = "".join(map(digest, value)).encode()
    else:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return hashlib.sha256(kind.encode() + content).hexdigest()


def write_preprocessing(folder: Path, content: Mapping[str, Any]) -> None:
    """Write :data:`PREPROCESSING` into a run's folder, unless it is there already."""
    if not (folder / PREPROCESSING).exists():
        write_json(folder / PREPROCESSING, content)


def read_preprocessing(folder: Path) -> dict[str, Any]:
    """Read :data:`PREPROCESSING` of a run; raise DatasetError if it is missing, DamagedFileError if it is damaged."""
    try:
        return read_json(folder / PREPROCESSING)
    except FileNotFoundError as error:
        raise DatasetError(f"{folder} lacks {PREPROCESSING}; resume the run, which writes it again") from error
