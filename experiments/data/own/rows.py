"""Rows of CSV and JSON Lines files, with the line of each."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import PARTS, find_parts, shorten

SUFFIXES = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson")}
"""Suffixes of the files of each format."""
_MAX_FIELD = 2**31 - 1
"""Longest field of a CSV file; Python's own limit, 131,072 characters, is too small for texts."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one file.

    Args:
        path: the file.
        columns: names of its columns.
        rows: a mapping from columns to cells for each row, which are not empty; cells of CSV are text.
        lines: the line at which each begins, from 1.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]
    lines: Sequence[int]

    @property
    def places(self) -> list[str]:
        """File and line of each row."""
        return [f"{self.path}, line {line}" for line in self.lines]

    def check_columns(self, **wanted: str) -> None:
        """Check that columns exist.

        Args:
            wanted: names of the settings, with a column each.

        Raises:
            DatasetError: a column is missing; names those that there are.
        """
        for setting, column in wanted.items():
            if column not in self.columns:
                separators = [each for each in ";\t|" if self.columns[0].count(each)] if len(self.columns) == 1 else []
                if separators:
                    raise DatasetError(
                        f"{self.path}, line 1 is a single column, {self.columns[0]!r}: set the character between its "
                        f"cells with --set 'data.delimiter={separators[0]}'"
                    )
                near = get_close_matches(column, self.columns, n=1)
                guess = f", did you mean {near[0]!r}?" if near else ";"
                raise DatasetError(
                    f"{self.path} has no column {column!r}{guess} its columns are {shorten(self.columns, most=20)}; "
                    f"choose one with --set data.{setting}=NAME"
                )

    def text(self, column: str) -> list[str]:
        """Return the cells of a column as texts without white space around them.

        Raises:
            DatasetError: an empty cell, or in JSON something other than a text or a number; names file and line.
        """
        found = []
        for row, place in zip(self.rows, self.places, strict=True):
            value = row.get(column)
            if isinstance(value, bool | int | float) and (not isinstance(value, float) or math.isfinite(value)):
                value = str(value)
            if not isinstance(value, str):
                kind = "nothing" if value is None else type(value).__name__
                raise DatasetError(f"{place}: {column!r} is {kind}, expected a text or a number")
            if not value.strip():
                raise DatasetError(f"{place}: {column!r} is empty; fill it in, or remove the row")
            found.append(value.strip())
        return found


def read_parts(path: Path, *, kind: str, delimiter: str | None = None) -> dict[str, Rows]:
    """Read one file, or the files ``train``, ``valid`` and ``test`` of a folder, by part.

    Args:
        path: file or folder.
        kind: ``csv`` or ``jsonl``.
        delimiter: between the cells of CSV; None: a tab in ``.tsv`` files, else a comma.

    Raises:
        DatasetError: no such files; or one that cannot be read, or whose rows differ in length: names file and line.
    """
    if path.is_dir():
        files: dict[str, list[Path]] = {}
        for each in sorted(path.iterdir()):
            if each.suffix.lower() in SUFFIXES[kind] and not each.name.startswith(".") and each.is_file():
                files.setdefault(each.stem.lower(), []).append(each)
        twice = next((paths for paths in files.values() if len(paths) > 1), None)
        if twice:
            raise DatasetError(f"{twice[0]} and {twice[1]} have the same name: remove or rename one")
        found = find_parts({name: paths[0] for name, paths in files.items()})
        if "train" not in found:
            names = [paths[0].name for paths in files.values()]
            raise DatasetError(
                f"{path} has no file train{SUFFIXES[kind][0]} (found: {shorten(names) if names else 'none'}); give "
                f"that folder a train part and, if there are any, {', '.join(sorted(PARTS.keys() - {'train'}))}, or "
                "name one file with --data FILE"
            )
    elif path.is_file():
        found = {"train": path}
    else:
        raise DatasetError(f"{path} does not exist; name your {kind.upper()} file or its folder with --data PATH")
    read = {part: read_file(file, kind=kind, delimiter=delimiter) for part, file in found.items()}
    first = read["train"]
    for rows in read.values():
        if kind == "csv" and set(rows.columns) != set(first.columns):
            other = sorted(set(rows.columns) ^ set(first.columns))
            raise DatasetError(f"{rows.path} and {first.path} differ in the columns {shorten(other)}")
    return read


def read_file(path: Path, *, kind: str, delimiter: str | None = None) -> Rows:
    """Read one file; arguments as for :func:`read_parts`.

    Raises:
        DatasetError: the file cannot be read, has no rows, or rows that differ in length: names file and line.
    """
    rows = _read_csv(path, delimiter) if kind == "csv" else _read_jsonl(path)
    if not rows.rows:
        raise DatasetError(f"{path} holds no rows{' below the names of its columns' if kind == 'csv' else ''}")
    return rows


def _read_csv(path: Path, delimiter: str | None) -> Rows:
    delimiter = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    before = csv.field_size_limit(_MAX_FIELD)
    try:
        return _parse_csv(path, csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True))
    finally:
        csv.field_size_limit(before)


def _parse_csv(path: Path, reader: Any) -> Rows:
    lines = _lines(path, reader)
    _, header = next(lines, (0, []))
    columns = tuple(name.strip() for name in header)
    if not columns:
        raise DatasetError(f"{path} is empty; its first line must name the columns")
    if "" in columns[1:] or len(set(columns)) < len(columns):
        raise DatasetError(f"{path}, line 1: the columns {shorten(columns, most=20)} need different names")
    rows, numbers = [], []
    for number, cells in lines:
        if len(cells) != len(columns):
            raise DatasetError(
                f"{path}, line {number} has {len(cells)} cells, and the first line names {len(columns)} columns "
                f"({shorten(columns)}); texts with commas or line breaks need double quotes around them, and another "
                "character between cells is set with data.delimiter (in predict --delimiter)"
            )
        rows.append(dict(zip(columns, cells, strict=True)))
        numbers.append(number)
    return Rows(path, columns, rows, numbers)


def _lines(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not a blank line, with the line at which it begins."""
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DatasetError(f"{path}, line {number}: {error}") from error
        if cells:
            yield number, cells


def _read_jsonl(path: Path) -> Rows:
    rows, numbers, columns = [], [], {}
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", str(error))
            raise DatasetError(f"{path}, line {number} is not JSON: {reason}") from error
        if not isinstance(row, dict):
            raise DatasetError(f"{path}, line {number} is no JSON object such as {{'text': …, 'label': …}}")
        rows.append(row)
        numbers.append(number)
        columns |= dict.fromkeys(row)
    return Rows(path, tuple(columns), rows, numbers)


def _text(path: Path) -> str:
    """Return the content of a file in UTF-8, with or without a byte-order mark."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DatasetError(
            f"{path}, line {line} is not UTF-8: byte 0x{content[error.start]:02x}; save the file as UTF-8"
        ) from error
