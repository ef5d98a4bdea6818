"""Inputs of a prediction from files: images, texts and rows of tables; what cannot be read is named."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import find_files, is_image, path_text, read_pixels
from probattn.experiments.data.own.examples import shorten
from probattn.experiments.data.own.rows import SUFFIXES, Rows, read_file
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.text.labelled_texts import decode


@dataclass
class Inputs:
    """Inputs that were read, and those that could not be.

    Args:
        names: where each was read, such as a file, or a file and its line.
        values: images uint8 (C, H, W), texts, or rows: cells by column.
        failures: what could not be read, with the reason.
    """

    names: list[str] = field(default_factory=list)
    values: list[Tensor | str | Mapping[str, str]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: Tensor | str | Mapping[str, str]) -> None:
        """Add an input; a text without words is a failure."""
        if isinstance(value, str) and not value.strip():
            self.failures[name] = "there is no text"
            return
        self.names.append(name)
        self.values.append(value)


def read_images(paths: Iterable[Path], *, shape: tuple[int, int, int], background: str = "white") -> Inputs:
    """Read image files, and those of folders at any depth.

    Args:
        paths: files and folders; hidden files in folders are left out.
        shape: channels, height and width of the images (see :func:`~probattn.experiments.data.images.files.pixels`).
        background: colour that transparent images stand on.
    """
    found = Inputs()
    for path in paths:
        if path.is_dir():
            files = list(find_files(path))
            if not files:
                found.failures[path_text(path)] = "the folder holds no files"
        else:
            files = [path]
        for file in files:
            try:
                if not file.exists():
                    raise DatasetError("there is no such file")
                if path.is_dir() and not is_image(file.name):
                    raise DatasetError("the suffix is not that of an image")
                image = read_pixels(file, shape, background=background)
                found.add(path_text(file), torch.from_numpy(image))
            except DatasetError as error:
                found.failures[path_text(file)] = str(error)
    return found


def read_texts(paths: Iterable[Path], *, texts: Sequence[str], column: str, delimiter: str | None = None) -> Inputs:
    """Read texts: those given, the lines of text files, and a column of CSV and JSON Lines files.

    Args:
        paths: files; ``-`` is the standard input, a text a line.
        texts: texts themselves.
        column: column of CSV files and key of JSON Lines.
        delimiter: between the cells of CSV; None: a tab in ``.tsv`` files, else a comma.

    A file that cannot be read, or has no such column, is one failure; so is each line without a text.
    """
    found = Inputs()
    for number, text in enumerate(texts, start=1):
        found.add(f"text {number}", text)
    for path in paths:
        try:
            for line, text in _texts(path, column, delimiter):
                if isinstance(text, DatasetError):
                    found.failures[f"{path}:{line}"] = str(text)
                else:
                    found.add(f"{path}:{line}", text)
        except DatasetError as error:
            found.failures[str(path)] = str(error)
        except OSError as error:
            found.failures[str(path)] = error.strerror or str(error)
    return found


def read_rows(paths: Iterable[Path], *, encoding: TableEncoding, delimiter: str | None = None) -> Inputs:
    """Read the rows of CSV, TSV and JSON Lines files; a row that the encoding refuses is a failure.

    Args:
        paths: files.
        encoding: encoding of the columns that the model takes; other columns are not read.
        delimiter: as for :func:`read_texts`.
    """
    found = Inputs()
    for path in paths:
        try:
            kind = "jsonl" if path.suffix.lower() in SUFFIXES["jsonl"] else "csv"
            rows = read_file(path, kind=kind, delimiter=delimiter)
            _check_columns([each.name for each in encoding.columns], rows)
        except DatasetError as error:
            found.failures[str(path)] = str(error)
            continue
        for cells, place in zip(rows.rows, rows.places, strict=True):
            try:
                encoding.features([cells], [place])
            except DatasetError as error:
                found.failures[place] = str(error)
            else:
                found.add(place, cells)
    return found


def _texts(path: Path, column: str, delimiter: str | None) -> Iterator[tuple[int, str | DatasetError]]:
    """Yield the texts of a file with their lines, from 1, and the error of a line that holds none."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES["csv"]:
        rows = read_file(path, kind="csv", delimiter=delimiter)
        _check_column(column, rows.columns)
        yield from zip(rows.lines, (row[column] for row in rows.rows), strict=True)
        return
    content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    text = decode(content, where=str(path)).removeprefix("\ufeff")
    yield from _entries(text, column) if suffix in SUFFIXES["jsonl"] else enumerate(text.splitlines(), start=1)


def _entries(text: str, column: str) -> Iterator[tuple[int, str | DatasetError]]:
    for line, entry in enumerate(text.split("\n"), start=1):
        if entry.strip():
            try:
                yield line, _entry(entry, column)
            except DatasetError as error:
                yield line, error


def _entry(entry: str, column: str) -> str:
    try:
        value = json.loads(entry)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"this line is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise DatasetError("this line is no JSON object")
    _check_column(column, tuple(value))
    if not isinstance(value[column], str):
        raise DatasetError(f"{column!r} is no text")
    return value[column]


def _check_columns(columns: Sequence[str], rows: Rows) -> None:
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise DatasetError(
            f"{rows.path} lacks the columns {shorten(missing)}, which the model takes; it has "
            f"{shorten(rows.columns)} (another character between the cells: --delimiter)"
        )


def _check_column(column: str, names: Sequence[str]) -> None:
    if column not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise DatasetError(f"there is no column {column!r}; name one with --column, there are {known}")
