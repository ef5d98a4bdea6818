"""Inputs of a prediction from files: images, texts and rows of tables; what cannot be read is
named."""

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import find_files, is_image, path_text, read_pixels
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.own.examples import shorten
from probattn.experiments.data.own.rows import SUFFIXES, TABLES, read_file, read_text, suffix
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.tables.table_dataset import TableDataset
from probattn.experiments.runs.load import TrainedRun


@dataclass
class Inputs:
    """Inputs that were read, and those that could not be.

    Args:
        values: images uint8 (C, H, W), texts, or rows: cells by column; by name, such as a file and
            its line.
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


def read_inputs(
    run: TrainedRun, paths: Sequence[Path], texts: Sequence[str], *, column: str | None = None
) -> Inputs:
    """Read files and texts, in the kind that a model takes.

    Args:
        run: the run, with or without its data.
        paths: files and, of images, folders.
        texts: texts themselves.
        column: column of the texts in files; None takes that of training.

    Raises:
        ValueError: there is nothing to read, or texts for a model of something else.
    """
    data = run.dataset
    settings = run.settings.data
    expected = {ImageDataset: "images", TableDataset: "rows of a table"}.get(type(data), "texts")
    if not (paths or texts) or (texts and expected != "texts"):
        raise ValueError(
            f"this model takes {expected}, and none were given; see `probattn predict --help`"
        )
    if expected == "images":
        shape = tuple(data.test.images.shape[1:])
        return read_images(paths, shape=shape, background=getattr(settings, "background", "white"))
    if isinstance(data, TableDataset):
        convert: Callable[[Any], Any] = functools.partial(checked_row, encoding=data.encoding)
    else:
        name = column or str(getattr(settings, "text_column", "text"))
        convert = functools.partial(checked_text, column=name)
    delimiter = getattr(settings, "delimiter", None)
    return read_rows(paths, convert, texts=texts, delimiter=delimiter)


def read_images(paths: Iterable[Path], *, shape: tuple[int, int, int], **options: Any) -> Inputs:
    """Read image files, and those of folders at any depth.

    Args:
        paths: files and folders; of folders, hidden files and those that are no images are left
            out.
        shape: channels, height and width of the images.
        options: as for :func:`~probattn.experiments.data.images.files.read_pixels`.
    """
    inputs = Inputs()
    for path in paths:
        for file in filter(is_image, find_files(path)) if os.path.isdir(path) else [path]:
            with inputs.failing(path_text(file)):
                inputs.values[path_text(file)] = torch.from_numpy(
                    read_pixels(file, shape, **options)
                )
    return inputs


def read_rows(
    paths: Iterable[Path],
    convert: Callable[[Any], Any],
    *,
    texts: Sequence[str] = (),
    delimiter: str | None = None,
) -> Inputs:
    """Read texts, and the rows of files; one that fails stops no others.

    Args:
        paths: CSV, TSV, Parquet and Excel files, whose rows are cells by column; JSON Lines; others
            have a text a line.
        convert: :func:`checked_text` or :func:`checked_row` with its options.
        texts: texts themselves.
        delimiter: between the cells of CSV; None: a tab in ``.tsv`` files, else a comma.
    """
    inputs = Inputs()
    for number, text in enumerate(texts, start=1):
        with inputs.failing(place := f"text {number}"):
            inputs.values[place] = convert(text)
    for path in paths:
        is_json = suffix(path) in SUFFIXES["jsonl"]
        with inputs.failing(path_text(path)):
            for line, row in _rows(path, delimiter=delimiter):
                with inputs.failing(place := f"{path_text(path)}:{line}"):
                    inputs.values[place] = convert(json.loads(row) if is_json else row)
    return inputs


def checked_text(row: Any, *, column: str) -> str:
    """Return the text of a row: itself, or its cell of a column; raise ValueError or DatasetError
    if there is none."""
    if isinstance(row, dict) and column not in row:
        raise DatasetError(
            f"there is no column {column!r}; choose one of {shorten(list(row))} by --column"
        )
    text = row[column] if isinstance(row, dict) else row
    if not isinstance(text, str) or not text.strip():
        raise DatasetError("there is no text")
    text.encode()  # fails for half of a surrogate pair, which is no character
    return text


def checked_row(row: Any, *, encoding: TableEncoding) -> dict[str, Any]:
    """Return a row of a table; raise DatasetError if it lacks a column of the model, or a column
    refuses its cell."""
    encoding.features(pd.DataFrame([row], index=["this row"], dtype=object))
    return row


def _rows(path: Path, *, delimiter: str | None) -> list[tuple[int, Any]]:
    """Return the rows of a table as cells by column, or the lines of others that are not blank, by
    line number."""
    if suffix(path) in (*SUFFIXES["csv"], *TABLES):
        table = read_file(path, kind="csv", delimiter=delimiter)
        return list(zip(table.index, table.to_dict("records"), strict=True))
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(number, line.rstrip("\r")) for number, line in lines if line.strip()]
