"""Tables, figures and reports that were generated from results: removed once the results have changed."""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from probattn.experiments.data.sealed_files import DamagedFileError, read_json, write_json

RECORD = "generated.json"
"""File that lists the generated files of a folder, and the digests of the results that they were generated from."""


def remove_outdated(folder: Path, sources: Mapping[str, str]) -> None:
    """Remove the recorded files of a folder, unless they were generated from results of these digests."""
    recorded = _read(folder)
    if recorded.get("sources") != sources:
        _remove(folder, recorded.get("files", ()))
        (folder / RECORD).unlink(missing_ok=True)


def record(folder: Path, files: Iterable[Path], sources: Mapping[str, str]) -> None:
    """Record the generated files of a folder, and remove those of the former record that are not among them.

    Args:
        folder: the folder, which contains the files at any depth.
        files: all files that were generated.
        sources: digests of the results that they were generated from, by name.
    """
    names = sorted({path.relative_to(folder).as_posix() for path in files})
    _remove(folder, set(_read(folder).get("files", ())) - set(names))
    write_json(folder / RECORD, {"sources": dict(sources), "files": names})


def _read(folder: Path) -> dict:
    """Return the record of a folder; empty without one, or if it is damaged."""
    with contextlib.suppress(FileNotFoundError, DamagedFileError):
        return read_json(folder / RECORD)
    return {}


def _remove(folder: Path, names: Iterable[str]) -> None:
    """Remove files by their path in a folder; what lies outside of it stays."""
    for name in names:
        path = folder / str(name)
        if path.resolve().is_relative_to(folder.resolve()):
            path.unlink(missing_ok=True)
