"""Files that contain a digest of their bytes, which is checked before anything else is read from them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probattn.experiments.data.digest import MARK, UNSEALED, is_intact, seal
from probattn.inference.io.files import write_bytes


class DamagedFileError(RuntimeError):
    """A file that is damaged, was edited, or was not written by this version of the library."""


def write_sealed(path: str | Path, content: bytes, *, tag: str | None = None) -> None:
    """Write a file atomically, with the digest of its bytes in place of the placeholder.

    Args:
        path: the file; its folder must exist.
        content: bytes that contain :data:`~probattn.experiments.data.digest.UNSEALED` once.
        tag: as for :func:`~probattn.inference.io.files.write_bytes`.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    write_bytes(path, seal(content), tag=tag)


def read_sealed(path: str | Path, *, advice: str = "restore it from a copy, or make it again") -> bytes:
    """Return the bytes of a file that :func:`write_sealed` wrote.

    Args:
        path: the file.
        advice: end of the error's message: what to do about a damaged file.

    Raises:
        FileNotFoundError: there is no such file; a folder or a pipe is none.
        OSError: it cannot be read.
        DamagedFileError: it has changed since it was written, or contains no digest.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; {advice}")
    content = path.read_bytes()
    if is_intact(content):
        return content
    if MARK.encode() in content:
        raise DamagedFileError(f"{path} is damaged or was edited: its content does not match its digest; {advice}")
    raise DamagedFileError(
        f"{path} is damaged, or was not written by this version of probattn: it contains no digest; {advice}"
    )


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, with its digest as the entry ``digest`` and NaN and infinities as null.

    Raises:
        ValueError: the content has an entry of that name.
        OSError: the file cannot be written; names ``path``.
    """
    if "digest" in content:
        raise ValueError(f"{path}: the entry 'digest' is that of the file; choose another name")
    clean = json.loads(json.dumps({"digest": UNSEALED, **content}), parse_constant=lambda _: None)
    write_sealed(path, (json.dumps(clean, indent=2) + "\n").encode(), tag="part")


def read_json(path: str | Path, *, advice: str = "restore it from a copy, or make it again") -> dict[str, Any]:
    """Return the content of a file that :func:`write_json` wrote.

    Args:
        path, advice: as for :func:`read_sealed`.

    Raises:
        FileNotFoundError, OSError, DamagedFileError: as for :func:`read_sealed`.
    """
    try:
        content = json.loads(read_sealed(path, advice=advice))
        del content["digest"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged: it is no JSON object with a digest; {advice}") from error
    return content
