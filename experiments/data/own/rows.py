"""Rows of CSV, TSV and JSON Lines files: data frames indexed by the place of each row, such as ``a.csv, line 2``."""

import csv
import io
import json
import logging
import math
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.config.validation import Delimiter
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import path_text
from probattn.experiments.data.own.examples import Parts, find_parts, labelled, normal_name, shorten
from probattn.experiments.data.text.labelled_texts import Texts, decode

SUFFIXES = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson")}  # of the files of each format
_log = logging.getLogger(__name__)
csv.field_size_limit(2**31 - 1)  # Python's own limit, 131,072 characters, is too small for texts


def read_parts(path: Path, *, kind: str, delimiter: Delimiter | None = None) -> dict[str, pd.DataFrame]:
    """Read one file, or the files of the parts in a folder, by part.

    Args:
        path: file, or folder with files such as ``train``, ``dev`` and ``Testing`` (see :data:`~.examples.PARTS`).
        kind: ``csv`` or ``jsonl``.
        delimiter: what separates columns; None is a tab in ``.tsv`` files, else a comma.

    Returns:
        Cells by column, texts in CSV, indexed by the place of each row.

    Raises:
        DatasetError: no such files; or one that cannot be read, or whose rows differ in length: names file and line.
    """
    files = {"train": path}
    if path.is_dir():
        listed = [file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES[kind]]
        files = find_parts({file.stem: file for file in listed if not file.name.startswith(".")})
        others = shorten([file.name for file in listed if file not in files.values()])
        if "train" not in files:
            raise DatasetError(f"{path} has no file train{SUFFIXES[kind][0]} ({others or None}): name one with --data")
        if others:
            _log.warning("%s: %s have no name of a part and are left out", path, others)
    parts = {part: read_file(file, kind=kind, delimiter=delimiter) for part, file in files.items()}
    for part, rows in parts.items():
        differing = sorted(set(rows) ^ set(parts["train"]))
        if kind == "csv" and differing:
            raise DatasetError(f"{files[part]} and {files['train']} differ in the columns {shorten(differing)}")
        rows.index = [f"{path_text(files[part])}, line {line}" for line in rows.index]
    return parts


def read_file(path: Path, *, kind: str, delimiter: str | None = None) -> pd.DataFrame:
    """Read one file, indexed by the line at which each row begins; arguments and errors as for :func:`read_parts`."""
    source = path_text(path)
    try:
        text = decode(path.read_bytes(), where=source).removeprefix("\ufeff")
    except OSError as error:
        raise DatasetError(f"cannot read {source}: {error.strerror}; name your data with --data PATH") from error
    delimiter = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    rows = _read_csv(text, delimiter, source) if kind == "csv" else _read_json_lines(text, source)
    if not rows:
        raise DatasetError(f"{source} holds no rows")
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [[row.get(name) for name in columns] for row in rows.values()]
    return pd.DataFrame(cells, columns=columns, index=list(rows), dtype=object)


def check_columns(rows: pd.DataFrame, **wanted: Collection[str]) -> None:
    """Raise DatasetError if a column is missing.

    Args:
        rows: indexed by their place.
        wanted: names of the settings, with the columns that each names.
    """
    for setting, column in ((setting, column) for setting, columns in wanted.items() for column in columns):
        if column not in rows:
            columns = list(rows)
            near = get_close_matches(column, columns, n=1) or ["NAME"]
            marks = [mark for mark in ";\t|" if len(columns) == 1 and mark in columns[0]]
            advice = f"data.delimiter={marks[0]}" if marks else f"data.{setting}={near[0]}"
            source, known = rows.index[0].rpartition(", ")[0], shorten(columns, limit=20)
            raise DatasetError(f"{source} has no column {column!r}, but {known}: choose one with --set '{advice}'")


def texts(rows: pd.DataFrame, column: str) -> list[str]:
    """Return the cells of a column as texts without white space around them.

    Raises:
        DatasetError: an empty cell, or something other than a text or a number; names file and line.
    """
    cells = rows[column]
    stripped = [
        str(cell).strip() if isinstance(cell, str) or (isinstance(cell, int | float) and math.isfinite(cell)) else ""
        for cell in cells
    ]
    if "" in stripped:
        position = stripped.index("")
        problem = f"{rows.index[position]}: {column!r} is {cells.iloc[position]!r}, expected a text"
        raise DatasetError(f"{problem}; fill it in, remove the row, or leave the split out (data.test_split=none)")
    return stripped


def names(rows: pd.DataFrame, column: str) -> list[str]:
    """Return the texts of a column as names, which are equal where they look alike; errors as for :func:`texts`."""
    return list(map(normal_name, texts(rows, column)))


def read_texts(path: Path, *, kind: str, delimiter: str | None = None, **options: Any) -> Parts:
    """Read texts and labels; arguments as for :func:`read_parts` and :func:`text_parts`."""
    return text_parts(read_parts(path, kind=kind, delimiter=delimiter), **options)


def text_parts(
    parts: Mapping[str, pd.DataFrame], *, text_column: str = "text", label_column: str = "label", **division: Any
) -> Parts:
    """Return the texts and labels of the rows of each part that there is.

    Args:
        parts: rows by part.
        text_column: column of the texts.
        label_column: column of the labels.
        division: as for :func:`~.examples.divide`.

    Raises:
        DatasetError: missing columns, empty texts or labels, a class with too few examples; names file and line.
    """
    given = {}
    for part, rows in parts.items():
        check_columns(rows, text_column=[text_column], label_column=[label_column])
        content = {"input": texts(rows, text_column), "label": names(rows, label_column)}
        given[part] = pd.DataFrame(content, index=rows.index, dtype=object)
    return labelled(given, lambda inputs, labels: Texts(tuple(inputs), labels), **division)


def _read_csv(text: str, delimiter: str, source: str) -> dict[int, dict[str, str]]:
    """Return the cells of each row by the line at which it begins; pandas fills short rows and knows no lines."""
    rows = _parse(text, delimiter, csv.QUOTE_MINIMAL, source) if delimiter != "\t" else _parse_tabs(text, source)
    first, *lines = rows or [1]
    columns = list(map(normal_name, rows.get(first, [])))
    while columns and not columns[-1] and not any("".join(rows[line][len(columns) - 1 :]) for line in lines):
        columns.pop()  # a delimiter at the end of the first line
    columns = [name or f"Unnamed: {position}" for position, name in enumerate(columns)]
    if not columns or len(set(columns)) < len(columns):
        raise DatasetError(f"{source}: its first line must name the columns, each with another name; got {columns}")
    for line in lines:
        if len(rows[line]) not in (len(columns), len(rows[first])):
            problem = (
                f"{source}, line {line} has {len(rows[line])} cells, and the first line names {len(columns)} columns"
            )
            raise DatasetError(
                f"{problem}: quote texts with delimiters, or set data.delimiter (in predict --delimiter)"
            )
    return {line: dict(zip(columns, rows[line], strict=False)) for line in lines}


def _parse_tabs(text: str, source: str) -> dict[int, list[str]]:
    """Return the rows of a file with tabs, in which quotes are marks of the texts if they would join its rows."""
    plain = _parse(text, "\t", csv.QUOTE_NONE, source)
    try:
        quoted = _parse(text, "\t", csv.QUOTE_MINIMAL, source)
    except DatasetError:
        return plain
    return plain if len(quoted) < len(plain) and len(set(map(len, plain.values()))) == 1 else quoted


def _parse(text: str, delimiter: str, quoting: int, source: str) -> dict[int, list[str]]:
    """Return the cells of each row that is no blank line, by the line at which it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    rows, line = {}, 1
    try:
        for cells in reader:
            rows |= {line: cells} if cells else {}
            line = reader.line_num + 1
    except csv.Error as error:
        raise DatasetError(f"{source}, line {line}: {error}; double the quotes inside of quoted texts") from error
    return rows


def _read_json_lines(text: str, source: str) -> dict[int, dict[str, Any]]:
    rows = {}
    for line, content in enumerate(text.split("\n"), start=1):
        try:
            row = json.loads(content or "{}")
            rows |= {line: {normal_name(name): cell for name, cell in row.items()}} if row else {}
        except (ValueError, AttributeError, RecursionError) as error:
            raise DatasetError(f"{source}, line {line} is no JSON object: {error}") from error
    return rows
