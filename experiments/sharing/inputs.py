"""Inputs of a prediction from files: images, texts and rows of tables; what cannot be read is named."""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import find_files, path_text, read_pixels
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.own.examples import shorten
from probattn.experiments.data.own.rows import SUFFIXES, read_file
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.tables.table_dataset import TableDataset
from probattn.experiments.data.text.labelled_texts import decode
from probattn.experiments.runs.load import TrainedRun


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
        """Make an error of data or files a failure of that name."""
        try:
            yield
        except (DatasetError, OSError, ValueError, RecursionError) as error:
            self.failures[name] = getattr(error, "strerror", None) or str(error)


def read_inputs(run: TrainedRun, paths: Sequence[Path], texts: Sequence[str], *, column: str | None = None) -> Inputs:
    """Read files and texts, in the kind that a model takes.

    Args:
        run: the run, with or without its data.
        paths: files and, of images, folders.
        texts: texts themselves.
        column: column of the texts in files; None takes that of training.

    Raises:
        ValueError: there is nothing to read, or texts for a model of something else.
    """
    data, settings = run.dataset, run.settings.data
    kind = {ImageDataset: "images", TableDataset: "rows of a table"}.get(type(data), "texts")
    if not paths and (kind != "texts" or not texts):
        raise ValueError(f"there is nothing to predict: this model takes {kind}, see `probattn predict --help`")
    delimiter = getattr(settings, "delimiter", None)
    if kind == "texts":
        column = column or getattr(settings, "text_column", "text")
        return read_texts(paths, texts=texts, column=column, delimiter=delimiter)
    if texts:
        raise ValueError(f"this model takes {kind}: leave --text out")
    if kind == "images":
        shape = tuple(data.test.images.shape[1:])
        return read_images(paths, shape=shape, background=getattr(settings, "background", "white"))
    return read_rows(paths, encoding=data.encoding, delimiter=delimiter)


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
            for file in find_files(path) if path.is_dir() else [path]:
                with inputs.failing(path_text(file)):
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
        if not isinstance(text, str) or not text.strip():
            raise DatasetError("there is no text")
        text.encode()  # fails for half of a surrogate pair, which is no character
        return text

    inputs = Inputs()
    for number, text in enumerate(texts, start=1):
        with inputs.failing(f"text {number}"):
            inputs.values[f"text {number}"] = text_of(text, "")
    return _read(inputs, paths, [column], convert=text_of, delimiter=delimiter)


def read_rows(paths: Iterable[Path], *, encoding: TableEncoding, delimiter: str | None = None) -> Inputs:
    """Read the rows of CSV files, and of others as JSON Lines; a row that the encoding refuses is a failure.

    Args:
        paths: files; ``-`` is the standard input.
        encoding: encoding of the columns that the model takes; other columns are not read.
        delimiter: as for :func:`read_texts`.
    """

    def cells_of(row: dict[str, Any], place: str) -> dict[str, Any]:
        encoding.features([row], [place])
        return row

    columns = [column.name for column in encoding.columns]
    return _read(Inputs(), paths, columns, convert=cells_of, delimiter=delimiter, plain_text=False)


def _read(
    inputs: Inputs,
    paths: Iterable[Path],
    columns: Sequence[str],
    *,
    convert: Callable[[Any, str], Any],
    delimiter: str | None,
    plain_text: bool = True,
) -> Inputs:
    """Add the rows of files to the inputs: cells by column, or lines of files of plain text, converted."""
    for path in paths:
        name, suffix = path_text(path), path.suffix.lower()
        is_json = suffix in SUFFIXES["jsonl"] or not plain_text
        with inputs.failing(name):
            if suffix in SUFFIXES["csv"]:
                table, is_json = read_file(path, kind="csv", delimiter=delimiter), False
                _check_columns(columns, table)
                rows: Iterable[tuple[int, Any]] = zip(table.index, table.to_dict("records"), strict=True)
            else:
                content = decode(sys.stdin.buffer.read() if name == "-" else path.read_bytes(), where=name)
                lines = io.StringIO(content.removeprefix("\ufeff"), newline=None)
                rows = enumerate((line.removesuffix("\n") for line in lines), start=1)
            for number, row in rows:
                with inputs.failing(place := f"{name}:{number}"):
                    if not is_json:
                        inputs.values[place] = convert(row, place)
                    elif row.strip():
                        inputs.values[place] = convert(_entry(row, columns), place)
    return inputs


def _entry(line: str, columns: Sequence[str]) -> dict[str, Any]:
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise DatasetError("this line is no JSON object")
    _check_columns(columns, entry)
    return entry


def _check_columns(columns: Sequence[str], names: Collection[str]) -> None:
    if missing := [column for column in columns if column not in names]:
        known = shorten(list(names)) or "none"
        raise DatasetError(f"there is no column {shorten(missing)}, but {known}; --column names that of texts")
