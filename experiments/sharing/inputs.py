"""Inputs of a prediction from files: images, texts and rows of tables; what cannot be read is named."""

import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import is_image, open_image
from probattn.experiments.data.own.rows import read_parts
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.text.labelled_texts import decode

WIDE_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes with more than 8 bits, which a conversion would cut off."""
TABLES = {".csv": ",", ".tsv": "\t"}
"""Suffixes of tables, with what separates their cells."""
LINES = (".jsonl", ".ndjson")
"""Suffixes of JSON Lines."""


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


def read_images(paths: Iterable[Path], *, shape: tuple[int, int, int]) -> Inputs:
    """Read image files, and those of folders at any depth.

    Args:
        paths: files and folders; hidden files in folders are left out.
        shape: channels, height and width of the images (see :func:`pixels`).
    """
    found = Inputs()
    for path in paths:
        if path.is_dir():
            files = list(_files(path))
            if not files:
                found.failures[str(path)] = "the folder holds no files"
        else:
            files = [path]
        for file in files:
            try:
                if not file.exists():
                    raise DatasetError("there is no such file")
                if path.is_dir() and not is_image(file.name):
                    raise DatasetError("the suffix is not that of an image")
                with open_image(file) as image:
                    found.add(str(file), torch.from_numpy(pixels(image, shape)))
            except DatasetError as error:
                found.failures[str(file)] = str(error)
    return found


def pixels(image: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Return an image as uint8 (C, H, W), grey or RGB: its shorter side is scaled to the size, its middle cropped.

    Raises:
        ValueError: more than 8 bits per channel.
    """
    if image.mode in WIDE_MODES:
        raise ValueError(f"it has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits")
    channels, size, _ = shape
    if image.mode == "P":
        image = image.convert("RGBA")  # Pillow warns if a palette with transparency is converted directly
    scale = size / min(image.size)
    width, height = (max(size, round(scale * length)) for length in image.size)
    resized = image.convert("RGB" if channels == 3 else "L").resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    cropped = np.asarray(resized.crop((left, top, left + size, top + size)))
    return cropped.reshape(size, size, channels).transpose(2, 0, 1).copy()


def read_texts(paths: Iterable[Path], *, texts: Sequence[str] = (), column: str = "text") -> Inputs:
    """Read texts: those given, the lines of text files, and a column of CSV and JSON Lines files.

    Args:
        paths: files; ``-`` is the standard input, a text a line.
        texts: texts themselves.
        column: column of tables and key of JSON Lines.

    A file that cannot be read, or has no such column, is one failure; so is each line without a text.
    """
    found = Inputs()
    for number, text in enumerate(texts, start=1):
        found.add(f"text {number}", text)
    for path in paths:
        try:
            for line, text in _texts(path, column):
                if isinstance(text, DatasetError):
                    found.failures[f"{path}:{line}"] = str(text)
                else:
                    found.add(f"{path}:{line}", text)
        except DatasetError as error:
            found.failures[str(path)] = str(error)
        except OSError as error:
            found.failures[str(path)] = error.strerror or str(error)
    return found


def read_rows(paths: Iterable[Path], *, encoding: TableEncoding) -> Inputs:
    """Read the rows of CSV, TSV and JSON Lines files; a row that the encoding refuses is a failure.

    Args:
        paths: files.
        encoding: encoding of the columns that the model takes; other columns are not read.
    """
    found = Inputs()
    for path in paths:
        try:
            kind = "jsonl" if path.suffix.lower() in LINES else "csv"
            (rows,) = read_parts(path, kind=kind).values()
        except DatasetError as error:
            found.failures[str(path)] = str(error)
            continue
        for cells, place in zip(rows.rows, rows.places, strict=True):
            row = {name: cell if isinstance(cell, str) else json.dumps(cell) for name, cell in cells.items()}
            try:
                encoding.features([row], [place])
            except DatasetError as error:
                found.failures[place] = str(error)
            else:
                found.add(place, row)
    return found


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place) / name for name in sorted(names) if not name.startswith("."))


def _texts(path: Path, column: str) -> Iterator[tuple[int, str | DatasetError]]:
    """Yield the texts of a file with their lines, from 1, and the error of a line that holds none."""
    content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    text = decode(content, where=str(path)).removeprefix("\ufeff")
    suffix = path.suffix.lower()
    if suffix in TABLES:
        yield from _cells(text, column, delimiter=TABLES[suffix])
    elif suffix in LINES:
        yield from _entries(text, column)
    else:
        yield from enumerate(text.splitlines(), start=1)


def _cells(text: str, column: str, *, delimiter: str) -> Iterator[tuple[int, str]]:
    before = csv.field_size_limit(2**31 - 1)  # Python's own limit, 131,072 characters, is too small for texts
    try:
        rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        _check_column(column, rows.fieldnames or ())
        line = rows.line_num
        for row in rows:
            yield line + 1, row[column] or ""
            line = rows.line_num
    except csv.Error as error:
        raise DatasetError(f"line {rows.line_num}: {error}; nothing after it was read") from error
    finally:
        csv.field_size_limit(before)


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


def _check_column(column: str, names: Sequence[str]) -> None:
    if column not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise DatasetError(f"there is no column {column!r}; name one with --column, there are {known}")
