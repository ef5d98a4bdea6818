"""Output files that a user names: written whole or not at all, and over nothing but earlier ones of
the same command."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from probattn.inference.io.files import write_files

# Files that are together in the folder of a run, of checkpoints, or of a shared model.
MODELS = (
    ("settings.json", "preprocessing.json"),
    ("settings.json", "best.pt"),
    ("last.pt", "log.jsonl"),
    ("config.json", "model.safetensors"),
)
# Bytes at the beginning and at the end of a file in which the mark of its command is looked for.
HEAD = 2**12
TAIL = 2**20


class OutputError(FileExistsError):
    """A place where a command may not write; nothing was written."""


def check_place(path: Path, *, inputs: Sequence[Path] = ()) -> Path:
    """Return a place that may be written, without links; it may be that of a file or a folder.

    Args:
        path: where the user wants the output.
        inputs: files and folders that the command reads.

    Raises:
        OutputError: it is an input, or lies in one, or in the folder of a run or of a shared model.
    """
    place = Path(os.path.realpath(path))  # also of links in a circle, which exist nowhere
    for source in inputs:
        is_same = place.exists() and source.exists() and place.samefile(source)
        if is_same or place.is_relative_to(os.path.realpath(source)):
            raise OutputError(f"{path} is an input, or lies in one, {source}: choose another --out")
    for folder in place.parents:
        if any(all((folder / name).exists() for name in names) for names in MODELS):
            raise OutputError(
                f"{path} lies in the folder of a run or model, {folder}: choose another --out"
            )
    return place


def check_outputs(paths: Iterable[Path], *, mark: str, inputs: Sequence[Path] = ()) -> list[Path]:
    """Return the places of files that may be written: they are free, or hold an earlier output of
    the same command.

    Args:
        paths: the files; the first has the mark.
        mark: text near the beginning or the end of the first file, by which earlier outputs are
            known.
        inputs: as for :func:`check_place`.

    Raises:
        OutputError: as for :func:`check_place`, or a file is there that is no earlier output.
    """
    places = [check_place(path, inputs=inputs) for path in paths]
    used = [
        place
        for place in places
        if place.exists() and (not place.is_file() or place.stat().st_size)
    ]
    if used and not (places[0].is_file() and mark.encode() in _ends(places[0])):
        raise OutputError(
            f"{used[0]} exists and is no output of this command: choose another --out, or remove it"
        )
    return places


def write_outputs(
    files: Mapping[Path, bytes] | Mapping[Path, str], *, mark: str, inputs: Sequence[Path] = ()
) -> None:
    """Write the files of a command together, and create their folders; arguments as for
    :func:`check_outputs`.

    Raises:
        OutputError: as for :func:`check_outputs`.
        OSError: a file cannot be written; all are then as before.
    """
    places = check_outputs(files, mark=mark, inputs=inputs)
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
    contents = [data.encode() if isinstance(data, str) else data for data in files.values()]
    write_files(dict(zip(places, contents, strict=True)))


def _ends(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(0, path.stat().st_size - TAIL))
        return head + file.read()
