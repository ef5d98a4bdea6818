"""Inputs of a prediction from files: images, texts and rows of tables; what cannot be read is named."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import find_files, is_image, path_text, read_pixels
from probattn.experiments.data.own.examples import shorten
from probattn.experiments.data.own.rows import SUFFIXES, read_file
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
    values: list[Any] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        """Add an input; an error is a failure, and so is a text without words or with half a surrogate pair."""
        if isinstance(value, OSError):
            self.failures[name] = value.strerror or str(value)
        elif isinstance(value, DatasetError):
            self.failures[name] = str(value)
        elif isinstance(value, str) and not value.strip():
            self.failures[name] = "there is no text"
        elif isinstance(value, str) and not value.isascii() and value.encode(errors="replace").decode() != value:
            self.failures[name] = "the text holds half of a surrogate pair, which is no character; remove it"
        else:
            self.names.append(name)
            self.values.append(value)


def read_images(paths: Iterable[Path], *, shape: tuple[int, int, int], **options: Any) -> Inputs:
    """Read image files, and those of folders at any depth.

    Args:
        paths: files and folders; hidden files in folders are left out.
        shape: channels, height and width of the images.
        options: as for :func:`~probattn.experiments.data.images.files.pixels`.
    """
    inputs = Inputs()
    for path in paths:
        try:
            files = list(find_files(path)) if path.is_dir() else [path]
            if not files:
                inputs.failures[str(path)] = "the folder holds no files"
        except (DatasetError, OSError) as error:
            inputs.add(str(path), error)
            continue
        for file in files:
            try:
                if file != path and not is_image(file.name):
                    raise DatasetError("the suffix is not that of an image")
                value = torch.from_numpy(read_pixels(file, shape, **options))
            except (DatasetError, OSError) as error:
                value = error
            inputs.add(path_text(file), value)
    return inputs


def read_texts(paths: Iterable[Path], *, texts: Sequence[str], column: str, delimiter: str | None = None) -> Inputs:
    """Read texts: those given, the lines of text files, and a column of CSV and JSON Lines files.

    Args:
        paths: files; ``-`` is the standard input, a text a line.
        texts: texts themselves.
        column: column of CSV files and key of JSON Lines.
        delimiter: between the cells of CSV; None: a tab in ``.tsv`` files, else a comma.
    """
    inputs = Inputs()
    for number, text in enumerate(texts, start=1):
        inputs.add(f"text {number}", text)
    for path in paths:
        for place, row in _rows(path, delimiter):
            text = row.get(column) if isinstance(row, Mapping) else row
            if isinstance(row, Mapping) and column not in row:
                known = shorten(list(row)) or "none"
                text = DatasetError(f"there is no column {column!r}; name one with --column, there are {known}")
            elif not isinstance(text, str | Exception):
                text = DatasetError(f"{column!r} is no text")
            inputs.add(place, text)
            if isinstance(text, DatasetError) and path.suffix.lower() in SUFFIXES["csv"]:
                break
    return inputs


def read_rows(paths: Iterable[Path], *, encoding: TableEncoding, delimiter: str | None = None) -> Inputs:
    """Read the rows of CSV, TSV and JSON Lines files; a row that the encoding refuses is a failure.

    Args:
        paths: files.
        encoding: encoding of the columns that the model takes; other columns are not read.
        delimiter: as for :func:`read_texts`.
    """
    inputs, columns = Inputs(), [column.name for column in encoding.columns]
    for path in paths:
        for place, row in _rows(path, delimiter):
            missing = [name for name in columns if isinstance(row, Mapping) and name not in row]
            if isinstance(row, str):
                row = DatasetError("this file is no table: name a .csv, .tsv or .jsonl file")
            elif missing:
                there = f"it has {shorten(list(row))} (another character between the cells: --delimiter)"
                row = DatasetError(f"{path} lacks the columns {shorten(missing)}, which the model takes; {there}")
            elif isinstance(row, Mapping):
                try:
                    encoding.features([row], [place])
                except DatasetError as error:
                    row = error
            inputs.add(place, row)
            if missing:
                break
    return inputs


def _rows(path: Path, delimiter: str | None) -> Iterator[tuple[str, Any]]:
    """Yield each row of a file with its place: cells by column, a line of text, or an error."""
    suffix = path.suffix.lower()
    try:
        if suffix in SUFFIXES["csv"]:
            rows = read_file(path, kind="csv", delimiter=delimiter)
            yield from zip((f"{path}:{line}" for line in rows.lines), rows.rows, strict=True)
            return
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        text = decode(content, where=str(path)).removeprefix("\ufeff")
    except (DatasetError, OSError) as error:
        yield str(path), error
        return
    is_json = suffix in SUFFIXES["jsonl"]
    for number, line in enumerate(text.split("\n") if is_json else text.splitlines(), start=1):
        if line.strip() or not is_json:
            yield f"{path}:{number}", _entry(line) if is_json else line


def _entry(line: str) -> Any:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        return DatasetError(f"this line is no JSON: {error}")
    return entry if isinstance(entry, dict) else DatasetError("this line is no JSON object")
