"""Rows of a CSV file by their line, with quotes that stand for text or for themselves."""

import csv
import io
import itertools
import logging
from collections.abc import Mapping
from typing import Literal

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import normal_name
from probattn.experiments.data.tables.numbers import readings

_log = logging.getLogger(__name__)
csv.field_size_limit(2**31 - 1)  # Python's own limit, 131,072 characters, is too small for texts


def read_csv(text: str, delimiter: str, source: str) -> dict[int, dict[str, str]]:
    """Return the cells of each row by the line at which it begins; pandas fills short rows and
    knows no lines."""
    rows = _parse(text, delimiter, source)
    first, *lines = rows or [1]
    columns = list(map(normal_name, rows.get(first, [])))
    while columns and not columns[-1]:
        columns.pop()  # delimiters at the end of the first line
    columns = [name or f"Unnamed: {position}" for position, name in enumerate(columns)]
    if not columns or len(set(columns)) < len(columns):
        raise DatasetError(
            f"{source}: its first line must name the columns, no name twice; got {columns}"
        )
    for line in lines:
        if len(rows[line]) < len(columns) or any(rows[line][len(columns) :]):
            problem = f"{source}, line {line} has {len(rows[line])} cells, expected {len(columns)}"
            raise DatasetError(f"{problem}: quote cells with delimiters, or set data.delimiter")
    return {line: dict(zip(columns, rows[line], strict=False)) for line in lines}


def _parse(text: str, delimiter: str, source: str) -> dict[int, list[str]]:
    """Return the cells of each row that is no blank line, by the line at which it begins.

    Quotes hold a cell together, also over several lines. Where they would join rows, or do not
    close, they are marks of the texts, unless rows then differ in length.
    """
    plain = _split(text, delimiter, csv.QUOTE_NONE)
    try:
        quoted = _split(text, delimiter, csv.QUOTE_MINIMAL)
    except csv.Error as error:
        problem = f"{source}, {error}"
    else:
        joined = _joined_rows(quoted, plain)
        if joined is None:
            several = [line for line, cells in quoted.items() if "\n" in cells[0]]
            if several and len(quoted[several[0]]) == 1:
                place = f"{source}, line {several[0]}"
                _log.warning("%s: quotes enclose several lines, which are read as one text", place)
            return quoted
        problem = f"{source}, line {joined}: a quote opens here and closes in a later row"
    if len(set(map(len, plain.values()))) > 1:
        raise DatasetError(f"{problem}; double the quotes inside of texts, or save JSON Lines")
    _log.warning("%s: quotes that do not enclose a cell are read as marks of its text", problem)
    return {line: list(map(_unquoted, cells)) for line, cells in plain.items()}


def _split(text: str, delimiter: str, quoting: Literal[0, 3]) -> dict[int, list[str]]:
    """Return the cells of each row that is no blank line, by the line at which it begins."""
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True
    )
    rows = dict[int, list[str]]()
    line = 1
    try:
        for cells in reader:
            if cells:
                rows[line] = cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise csv.Error(f"line {line}: {error}") from error
    return rows


def _joined_rows(quoted: Mapping[int, list[str]], plain: Mapping[int, list[str]]) -> int | None:
    """Return the line at which a quote first joins rows, or None.

    It joins lines that both have the cells of a row, and in a column those of other rows, or
    numbers.

    Args:
        quoted, plain: rows by line, where quotes hold cells together and where they do not.
    """
    if plain.keys() <= quoted.keys():
        return None
    width = len(next(iter(quoted.values())))
    rows = [map(_shape, row) for row in quoted.values() if len(row) == width]
    known = [set(cells) - {""} for cells in zip(*rows, strict=True)]  # by column
    for line, following in itertools.pairwise(plain):
        pair = plain[line], plain[following]
        if following not in quoted and len(pair[0]) == len(pair[1]) == width:
            columns = [set(map(_shape, cells)) for cells in zip(*pair, strict=True)]
            if any(map(set.issubset, columns, known)):
                return line
    return None


def _shape(cell: str) -> str:
    """Return a cell, with one digit for every number."""
    return "0" if readings([cell]) else cell


def _unquoted(cell: str) -> str:
    """Return a cell without the quotes that enclose it."""
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if is_quoted else cell
