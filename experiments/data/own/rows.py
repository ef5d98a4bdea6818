"""Rows of CSV, TSV and JSON Lines files, with the line of each."""

import csv
import io
import json
import logging
import math
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import find_parts, normal_name, shorten
from probattn.experiments.data.text.labelled_texts import decode

SUFFIXES = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson")}
"""Suffixes of the files of each format."""
_log = logging.getLogger(__name__)
csv.field_size_limit(2**31 - 1)  # Python's own limit, 131,072 characters, is too small for texts


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one file, or of one split of a data set.

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
        """Cells of each row by column."""
        return self.cells.to_dict("records")

    @property
    def lines(self) -> list[int]:
        """Line at which each row begins, from 1."""
        return self.cells.index.tolist()

    @property
    def places(self) -> list[str]:
        """File and line of each row."""
        return [f"{self.source}, {self.unit} {line}" for line in self.lines]

    def check_columns(self, **wanted: str) -> None:
        """Raise DatasetError if a column is missing.

        Args:
            wanted: names of the settings, with a column each.
        """
        for setting, column in wanted.items():
            if column not in self.columns:
                near = get_close_matches(column, self.columns, n=1) or ["NAME"]
                marks = [mark for mark in ";\t|" if len(self.columns) == 1 and mark in self.columns[0]]
                advice = f"--set 'data.delimiter={marks[0]}'" if marks else f"--set 'data.{setting}={near[0]}'"
                columns = shorten(self.columns, limit=20)
                raise DatasetError(f"{self.source} has no column {column!r}, but {columns}: choose one with {advice}")

    def text(self, column: str) -> list[str]:
        """Return the cells of a column as texts without white space around them.

        Raises:
            DatasetError: an empty cell, or something other than a text or a number; names file and line.
        """
        texts = []
        for cell, place in zip(self.cells[column], self.places, strict=True):
            is_number = isinstance(cell, int | float) and math.isfinite(cell)
            texts.append(str(cell).strip() if is_number or isinstance(cell, str) else "")
            if not texts[-1]:
                is_file = self.unit == "line"
                remedy = "fill it in, or remove the row" if is_file else "choose other splits, or data.test_split=none"
                raise DatasetError(f"{place}: {column!r} is {cell!r}, expected a text; {remedy}")
        return texts

    def labels(self, column: str) -> list[str]:
        """Return the cells of a column as names, which are equal where they look alike."""
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
        names = [file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES[kind]]
        files = find_parts({file.stem: file for file in names if not file.name.startswith(".")})
        others = shorten([file.name for file in names if file not in files.values()]) or "none"
        if "train" not in files:
            raise DatasetError(f"{path} has no file train{SUFFIXES[kind][0]} (others: {others}): give one with --data")
        if others != "none":
            _log.warning("%s: %s have no name of a part and are left out", path, others)
    parts = {part: read_file(file, kind=kind, delimiter=delimiter) for part, file in files.items()}
    for rows in parts.values():
        differing = sorted(set(rows.columns) ^ set(parts["train"].columns))
        if kind == "csv" and differing:
            raise DatasetError(f"{rows.source} and {parts['train'].source} differ in the columns {shorten(differing)}")
    return parts


def read_file(path: Path, *, kind: str, delimiter: str | None = None) -> Rows:
    """Read one file; arguments and errors as for :func:`read_parts`."""
    source = str(path).encode("utf-8", "backslashreplace").decode()
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
    return Rows(source, pd.DataFrame(cells, columns=columns, index=list(rows), dtype=object))


def _read_csv(text: str, delimiter: str, source: str) -> dict[int, dict[str, str]]:
    """Return the cells of each row by the line at which it begins; pandas fills short rows and knows no lines."""
    rows = _parse(text, delimiter, csv.QUOTE_MINIMAL, source) if delimiter != "\t" else _parse_tabs(text, source)
    first, *lines = rows or [1]
    names = list(map(normal_name, rows.get(first, [])))
    while names and not names[-1] and not any("".join(rows[line][len(names) - 1 :]) for line in lines):
        names.pop()  # a delimiter at the end of the first line
    names = [name or f"Unnamed: {position}" for position, name in enumerate(names)]
    if not names or len(set(names)) < len(names):
        raise DatasetError(f"{source}: its first line must name the columns, each with another name; got {names}")
    for line in lines:
        if len(rows[line]) not in (len(names), len(rows[first])):
            raise DatasetError(
                f"{source}, line {line} has {len(rows[line])} cells, and the first line names {len(names)} columns; "
                "texts with delimiters or line breaks need double quotes around them, and data.delimiter (in predict "
                "--delimiter) sets another delimiter"
            )
    return {line: dict(zip(names, rows[line], strict=False)) for line in lines}


def _parse_tabs(text: str, source: str) -> dict[int, list[str]]:
    """Return the rows of a file with tabs, in which quotes are marks of the texts if they would join its rows."""
    plain = _parse(text, "\t", csv.QUOTE_NONE, source)
    try:
        quoted = _parse(text, "\t", csv.QUOTE_MINIMAL, source)
    except DatasetError:
        quoted = plain
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
