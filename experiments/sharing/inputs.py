"""Inputs of a prediction from files: images, texts and rows of tables; what cannot be read is named."""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import find_files, is_image, path_text, read_pixels
from probattn.experiments.data.own.examples import shorten
from probattn.experiments.data.own.rows import SUFFIXES, read_file
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.text.labelled_texts import decode
from probattn.experiments.sharing.pipeline import Pipeline


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
        except (DatasetError, OSError) as error:
            self.failures[name] = getattr(error, "strerror", None) or str(error)


def read_inputs(
    pipeline: Pipeline, paths: Sequence[Path], texts: Sequence[str], *, column: str | None, delimiter: str | None
) -> Inputs:
    """Read files and texts, in the kind that a model takes; columns and delimiter are by default those of training.

    Raises:
        ValueError: nothing was given, or inputs of another kind.
    """
    kind = "rows of a table" if pipeline.columns else "texts" if pipeline.image_shape is None else "images"
    images = [path for path in paths if is_image(path.name)]
    if not paths and not texts:
        raise ValueError(f"there is nothing to predict: this model takes {kind}, see `probattn predict --help`")
    if (images and kind != "images") or (texts and kind != "texts"):
        raise ValueError(f"this model takes {kind}, and {'--text is a text' if texts else f'{images[0]} is an image'}")
    data = pipeline.run.settings.data
    if kind == "images":
        return read_images(paths, shape=pipeline.image_shape, background=getattr(data, "background", "white"))
    delimiter = delimiter or getattr(data, "delimiter", None)
    if kind == "texts":
        column = column or getattr(data, "text_column", "text")
        return read_texts(paths, texts=texts, column=column, delimiter=delimiter)
    return read_rows(paths, encoding=pipeline.run.dataset.encoding, delimiter=delimiter)


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
        if text != text.encode(errors="ignore").decode():
            raise DatasetError("the text holds half of a surrogate pair, which is no character; remove it")
        if not text.strip():
            raise DatasetError("there is no text")
        return text

    inputs = Inputs()
    for name, text in ((f"text {number}", text) for number, text in enumerate(texts, start=1)):
        with inputs.failing(name):
            inputs.values[name] = text_of(text, name)
    return _read(inputs, paths, [column], delimiter=delimiter, convert=text_of)


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
        encoding.features(pd.DataFrame([row], index=[place], dtype=object))
        return row

    columns = [column.name for column in encoding.columns]
    return _read(Inputs(), paths, columns, delimiter=delimiter, convert=cells_of)


def _read(
    inputs: Inputs, paths: Iterable[Path], columns: Sequence[str], *, delimiter: str | None, convert: Callable
) -> Inputs:
    """Add the rows of files to the inputs: cells by column, or lines of text, converted."""
    for path in paths:
        name, suffix = path_text(path), path.suffix.lower()
        with inputs.failing(name):
            if suffix in SUFFIXES["csv"]:
                table = read_file(path, kind="csv", delimiter=delimiter)
                _check_columns(columns, table)
                rows: Iterable[tuple[Any, Any]] = zip(table.index, table.to_dict("records"), strict=True)
            else:
                content = sys.stdin.buffer.read() if name == "-" else path.read_bytes()
                text = decode(content, where=name).removeprefix("\ufeff")
                rows = enumerate((line.removesuffix("\n") for line in io.StringIO(text, newline=None)), start=1)
            for number, row in rows:
                with inputs.failing(place := f"{name}:{number}"):
                    if suffix not in SUFFIXES["jsonl"]:
                        inputs.values[place] = convert(row, place)
                    elif row.strip():
                        inputs.values[place] = convert(_entry(row, columns), place)
    return inputs


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
    if missing := [column for column in columns if column not in names]:
        known = shorten(list(names)) or "none"
        raise DatasetError(f"there is no column {shorten(missing)}, but {known}: choose by --column or --delimiter")
