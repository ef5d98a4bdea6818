"""Rows of CSV, TSV and JSON Lines files, with the line of each."""

import csv
import io
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import PARTS, find_parts, normal_name, shorten
from probattn.experiments.data.text.labelled_texts import decode

SUFFIXES = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson")}
"""Suffixes of the files of each format."""
_log = logging.getLogger(__name__)
csv.field_size_limit(2**31 - 1)  # Python's own limit, 131,072 characters, is too small for texts


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one file or of one split of a data set.

    Args:
        source: name of the file or split, for messages.
        cells: cells by column, texts in CSV; the index is the line at which each row begins, from 1.
        unit: what the index counts.
    """

    source: str
    cells: pd.DataFrame
    unit: str = "line"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.cells.columns)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The cells of each row by column."""
        return self.cells.to_dict("records")

    @property
    def lines(self) -> list[int]:
        """The line at which each row begins, from 1."""
        return self.cells.index.tolist()

    @property
    def places(self) -> list[str]:
        """File and line of each row."""
        return [f"{self.source}, {self.unit} {line}" for line in self.lines]

    def check_columns(self, **wanted: str) -> None:
        """Check that columns exist.

        Args:
            wanted: names of the settings, with a column each.

        Raises:
            DatasetError: a column is missing; names those that there are.
        """
        for setting, column in wanted.items():
            separators = [mark for mark in ";\t|" if mark in self.columns[0]] if len(self.columns) == 1 else []
            if column not in self.columns and separators:
                raise DatasetError(
                    f"{self.source}, line 1 is a single column, {self.columns[0]!r}: set the character between its "
                    f"cells with --set 'data.delimiter={separators[0]}'"
                )
            if column not in self.columns:
                near = get_close_matches(column, self.columns, n=1)
                guess = f", did you mean {near[0]!r}?" if near else ";"
                raise DatasetError(
                    f"{self.source} has no column {column!r}{guess} its columns are {shorten(self.columns, most=20)}; "
                    f"choose one with --set data.{setting}=NAME"
                )

    def text(self, column: str) -> list[str]:
        """Return the cells of a column as texts without white space around them.

        Raises:
            DatasetError: an empty cell, or something other than a text or a number; names file and line.
        """
        texts = []
        for cell, place in zip(self.cells[column], self.places, strict=True):
            is_number = isinstance(cell, bool | int | float) and math.isfinite(cell)
            text = str(cell).strip() if is_number or isinstance(cell, str) else ""
            if not text:
                shown = "empty" if isinstance(cell, str) else f"{cell!r}, expected a text or a number"
                raise DatasetError(f"{place}: {column!r} is {shown}; fill it in, or remove the row")
            texts.append(text)
        return texts

    def labels(self, column: str) -> list[str]:
        """Return the cells of a column as names of classes, which are equal where they look alike."""
        return list(map(normal_name, self.text(column)))


def read_parts(path: Path, *, kind: str, delimiter: str | None = None) -> dict[str, Rows]:
    """Read one file, or the files of the parts in a folder, by part.

    Args:
        path: file, or folder with files such as ``train``, ``dev`` and ``Testing`` (see :data:`~.examples.PARTS`).
        kind: ``csv`` or ``jsonl``.
        delimiter: between the cells of CSV; None: a tab in ``.tsv`` files, else a comma.

    Raises:
        DatasetError: no such files; or one that cannot be read, or whose rows differ in length: names file and line.
    """
    files = {"train": path}
    if path.is_dir():
        listed = [file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES[kind] and file.is_file()]
        by_name = {file.stem: file for file in listed if not file.name.startswith(".")}
        files = find_parts(by_name)
        if "train" not in files:
            raise DatasetError(
                f"{path} has no file train{SUFFIXES[kind][0]} (found: {shorten([file.name for file in listed])}); "
                f"name its parts {', '.join(PARTS)}, or give one file with --data FILE"
            )
        others = [file.name for file in listed if file not in files.values()]
        if others:
            _log.warning("%s: %s are no parts of the data and are left out", path, shorten(others))
    read = {part: read_file(file, kind=kind, delimiter=delimiter) for part, file in files.items()}
    for rows in read.values():
        differing = sorted(set(rows.columns) ^ set(read["train"].columns))
        if kind == "csv" and differing:
            raise DatasetError(f"{rows.source} and {read['train'].source} differ in the columns {shorten(differing)}")
    return read


def read_file(path: Path, *, kind: str, delimiter: str | None = None) -> Rows:
    """Read one file; arguments as for :func:`read_parts`.

    Raises:
        DatasetError: the file cannot be read, has no rows, or rows that differ in length: names file and line.
    """
    source = str(path).encode("utf-8", "backslashreplace").decode()
    try:
        text = decode(path.read_bytes(), where=source).removeprefix("\ufeff")
    except OSError as error:
        raise DatasetError(f"cannot read {source}: {error.strerror}; name your data with --data PATH") from error
    delimiter = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    cells = _read_csv(text, delimiter, source) if kind == "csv" else _read_jsonl(text, source)
    if cells.empty:
        raise DatasetError(f"{source} holds no rows")
    return Rows(source, cells)


def _read_csv(text: str, delimiter: str, source: str) -> pd.DataFrame:
    """Return the cells of a CSV file; the quotes of a tab-separated one are marks of its texts, if rows need that."""
    if delimiter != "\t":
        return _frame(_parse(text, delimiter, csv.QUOTE_MINIMAL, source), source)
    plain = _parse(text, delimiter, csv.QUOTE_NONE, source)
    try:
        quoted = _parse(text, delimiter, csv.QUOTE_MINIMAL, source)
    except DatasetError:
        return _frame(plain, source)
    is_table = len(set(map(len, plain.values()))) == 1
    return _frame(plain if is_table and len(quoted) < len(plain) else quoted, source)


def _parse(text: str, delimiter: str, quoting: int, source: str) -> dict[int, list[str]]:
    """Return the cells of each row that is no blank line, by the line at which it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    rows, line = {}, 1
    try:
        for cells in reader:
            if cells:
                rows[line] = cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise DatasetError(f"{source}, line {line}: {error}; double the quotes inside of quoted texts") from error
    return rows


def _frame(rows: Mapping[int, Sequence[str]], source: str) -> pd.DataFrame:
    """Return rows as a table whose columns the first row names."""
    (_, header), *body = rows.items() or [(1, [])]
    names = [normal_name(name) for name in header]
    while names and not names[-1] and all(len(cells) < len(names) or not cells[len(names) - 1] for _, cells in body):
        names.pop()  # a delimiter at the end of the first line
    names = [name or f"Unnamed: {position}" for position, name in enumerate(names)]
    if not names:
        raise DatasetError(f"{source} is empty; its first line must name the columns")
    if len(set(names)) < len(names):
        raise DatasetError(f"{source}, line 1: the columns {shorten(names, most=20)} need different names")
    for line, cells in body:
        if len(cells) != len(names) and not (len(header) > len(names) and len(cells) == len(header)):
            raise DatasetError(
                f"{source}, line {line} has {len(cells)} cells, and the first line names {len(names)} columns "
                f"({shorten(names)}); texts with commas or line breaks need double quotes around them, and another "
                "character between cells is set with data.delimiter (in predict --delimiter)"
            )
    content = [cells[: len(names)] for _, cells in body]
    return pd.DataFrame(content, columns=names, index=[line for line, _ in body], dtype=object)


def _read_jsonl(text: str, source: str) -> pd.DataFrame:
    rows = {}
    for line, content in enumerate(text.split("\n"), start=1):
        try:
            row = json.loads(content) if content.strip() else None
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{source}, line {line} is not JSON: {error}") from error
        if row is not None and not isinstance(row, dict):
            raise DatasetError(f"{source}, line {line} is no JSON object such as {{'text': …, 'label': …}}")
        if row:
            rows[line] = {normal_name(name): cell for name, cell in row.items()}
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [[row.get(name) for name in columns] for row in rows.values()]
    return pd.DataFrame(cells, columns=columns, index=list(rows), dtype=object)
