"""Inputs of a prediction from files: images, texts and rows of tables; what cannot be read is named."""

import contextlib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
        values: images uint8 (C, H, W), texts, or rows: cells by column; by name, such as a file and its line.
        failures: what could not be read, with the reason.
    """

    values: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def failing(self, name: str) -> Iterator[None]:
        """Make an error of data or files, or half a surrogate pair, a failure of that name."""
        try:
            yield
        except UnicodeEncodeError:
            self.failures[name] = "the text holds half of a surrogate pair, which is no character; remove it"
        except (DatasetError, OSError) as error:
            self.failures[name] = getattr(error, "strerror", None) or str(error)


def read_images(paths: Iterable[Path], *, shape: tuple[int, int, int], **options: Any) -> Inputs:
    """Read image files, and those of folders at any depth.

    Args:
        paths: files and folders; hidden files in folders are left out.
        shape: channels, height and width of the images.
        options: as for :func:`~probattn.experiments.data.images.files.read_pixels`.
    """
    inputs = Inputs()
    for path in paths:
        with inputs.failing(path_text(path)):
            files = list(find_files(path)) if path.is_dir() else [path]
            if not files:
                raise DatasetError("the folder holds no files")
            for file in files:
                with inputs.failing(path_text(file)):
                    if file != path and not is_image(file.name):
                        raise DatasetError("the suffix is not that of an image")
                    inputs.values[path_text(file)] = torch.from_numpy(read_pixels(file, shape, **options))
    return inputs


def read_texts(paths: Iterable[Path], *, texts: Sequence[str], column: str, delimiter: str | None = None) -> Inputs:
    """Read texts: those given, the lines of text files, and a column of CSV and JSON Lines files.

    Args:
        paths: files; ``-`` is the standard input, a text a line.
        texts: texts themselves.
        column: column of CSV files and key of JSON Lines.
        delimiter: between the cells of CSV; None: a tab in ``.tsv`` files, else a comma.
    """

    def text_of(row: Any, place: str) -> str:
        text = row[column] if isinstance(row, dict) else row
        if not isinstance(text, str):
            raise DatasetError(f"{column!r} is no text")
        text.encode()  # refuses half of a surrogate pair
        if not text.strip():
            raise DatasetError("there is no text")
        return text

    inputs = Inputs()
    for number, text in enumerate(texts, start=1):
        with inputs.failing(f"text {number}"):
            inputs.values[f"text {number}"] = text_of(text, "")
    return _read(inputs, paths, columns=[column], delimiter=delimiter, convert=text_of)


def read_rows(paths: Iterable[Path], *, encoding: TableEncoding, delimiter: str | None = None) -> Inputs:
    """Read the rows of CSV, TSV and JSON Lines files; a row that the encoding refuses is a failure.

    Args:
        paths: files.
        encoding: encoding of the columns that the model takes; other columns are not read.
        delimiter: as for :func:`read_texts`.
    """

    def cells_of(row: Any, place: str) -> dict[str, Any]:
        if isinstance(row, str):
            raise DatasetError("this line is no row of a table: name a .csv, .tsv or .jsonl file")
        encoding.features([row], [place])
        return row

    columns = [column.name for column in encoding.columns]
    return _read(Inputs(), paths, columns=columns, delimiter=delimiter, convert=cells_of)


def _read(
    inputs: Inputs,
    paths: Iterable[Path],
    *,
    columns: Sequence[str],
    delimiter: str | None,
    convert: Callable[[Any, str], Any],
) -> Inputs:
    """Add the converted rows of files to the inputs: cells by column, or lines of text."""
    for path in paths:
        with inputs.failing(path_text(path)):
            for line, row in _rows(path, columns, delimiter):
                place = f"{path_text(path)}:{line}"
                with inputs.failing(place):
                    is_json = path.suffix.lower() in SUFFIXES["jsonl"]
                    inputs.values[place] = convert(_entry(row, columns) if is_json else row, place)
    return inputs


def _rows(path: Path, columns: Sequence[str], delimiter: str | None) -> Iterable[tuple[int, Any]]:
    """Return the rows of CSV, or the lines of other files, with their numbers."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES["csv"]:
        rows = read_file(path, kind="csv", delimiter=delimiter)
        _check_columns(columns, rows)
        return zip(rows.index, rows.to_dict("records"), strict=True)
    content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    text, is_json = decode(content, where=str(path)).removeprefix("\ufeff"), suffix in SUFFIXES["jsonl"]
    lines = enumerate(text.split("\n") if is_json else text.splitlines(), start=1)
    return [(number, line) for number, line in lines if line.strip() or not is_json]


def _entry(line: str, columns: Sequence[str]) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"this line is no JSON: {error}") from error
    if not isinstance(entry, dict):
        raise DatasetError("this line is no JSON object")
    _check_columns(columns, entry)
    return entry


def _check_columns(columns: Sequence[str], names: Collection[str]) -> None:
    missing = [column for column in columns if column not in names]
    if missing:
        raise DatasetError(
            f"there is no column {shorten(missing)}, which the model takes, but {shorten(list(names)) or 'none'}; "
            "name the column of the texts with --column, another character between cells with --delimiter"
        )
