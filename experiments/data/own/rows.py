"""Rows of files and Hugging Face data sets: data frames indexed by the place of each row, such as
``a.csv, line 2``."""

import gzip
import json
import logging
import zlib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import path_text
from probattn.experiments.data.option_types import Delimiter
from probattn.experiments.data.own.csv_rows import read_csv
from probattn.experiments.data.own.examples import (
    Parts,
    choose_parts,
    labelled,
    normal_name,
    shorten,
)
from probattn.experiments.data.text.labelled_texts import Texts, comparable, decode
from probattn.inference.imports import extra

# Suffixes of the files of each format, also with .gz.
SUFFIXES = {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson", ".json")}
TABLES = (".parquet", ".xlsx", ".xls")  # of files that pandas reads
# First bytes of files of other formats.
OTHERS = {
    b"PK\x03\x04": "Excel or a zip archive",
    b"PAR1": "Parquet",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_log = logging.getLogger(__name__)


def read_parts(
    path: Path, *, kind: str, delimiter: Delimiter | None = None
) -> dict[str, pd.DataFrame]:
    """Read one file, or the files of the parts in a folder, by part.

    Args:
        path: file, or folder with files such as ``train``, ``dev`` and ``Testing`` (see
            :data:`~.examples.PARTS`).
        kind: ``csv`` or ``jsonl``, of files whose suffix does not say it; Parquet and Excel files
            are read in place of both.
        delimiter: what separates columns; None is a tab in ``.tsv`` files, else a comma.

    Returns:
        Cells by column, texts in CSV, indexed by the place of each row.

    Raises:
        OSError: no such file.
        DatasetError: one that cannot be read, or whose rows differ in length: names file and line.
    """
    files = {"train": path}
    if path.is_dir():
        known = (*SUFFIXES[kind], *TABLES)
        listed = [file for file in sorted(path.iterdir()) if suffix(file) in known]
        files = choose_parts({file.name: file for file in listed}, source=path_text(path))
    parts = {role: read_file(file, kind=kind, delimiter=delimiter) for role, file in files.items()}
    for role, rows in parts.items():
        rows.index = [f"{path_text(files[role])}, line {line}" for line in rows.index]
    return parts


def suffix(path: Path) -> str:
    """Return the suffix of a file in lower case, without that of compression."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_text(path: Path) -> str:
    """Return the text of a file, which may be compressed by gzip, without a byte order mark.

    Raises:
        DatasetError: it is damaged, not UTF-8, or of another format.
    """
    content = path.read_bytes()
    source = path_text(path)
    if path.suffix.lower() == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DatasetError(f"{source} is no complete gzip file: {error}") from error
    for mark, form in OTHERS.items():
        if content.startswith(mark):
            advice = "name it so (.xlsx, .parquet, .gz), or save it as CSV in UTF-8"
            raise DatasetError(f"{source} is {form}: {advice}")
    return decode(content, where=source).removeprefix("\ufeff")


def read_file(path: Path, *, kind: str, delimiter: str | None = None) -> pd.DataFrame:
    """Read one file, indexed by the line at which each row begins; arguments and errors as for
    :func:`read_parts`."""
    source = path_text(path)
    if suffix(path) in TABLES:
        return _read_table(path, source)
    text = read_text(path)
    for known, suffixes in SUFFIXES.items():
        kind = known if suffix(path) in suffixes else kind
    if text.startswith("[{"):
        raise DatasetError(f"{source} is JSON of one list: save JSON Lines, an object a line")
    delimiter = delimiter or ("\t" if suffix(path) == ".tsv" else ",")
    rows = read_csv(text, delimiter, source) if kind == "csv" else _read_json_lines(text, source)
    if not rows:
        raise DatasetError(f"{source} holds no rows")
    return pd.DataFrame(list(rows.values()), index=list(rows), dtype=object)


def _read_table(path: Path, source: str) -> pd.DataFrame:
    """Return the cells of a Parquet or Excel file as texts, empty where missing, and numbers with
    decimals as floats, which have no decimal mark; line 1 has the names."""
    try:
        if suffix(path) == ".parquet":
            sheets = {"": pd.read_parquet(path)}
        else:
            sheets = pd.read_excel(path, sheet_name=None, keep_default_na=False)
    except Exception as error:  # of many types; that of a missing package says what to install
        raise DatasetError(f"cannot read {source}: {error}; or save it as CSV") from error
    read, *others = sheets.values()
    if others:
        _log.warning("%s: left out all but its first sheet, %r", source, next(iter(sheets)))
    if not len(read):
        raise DatasetError(f"{source} holds no rows")
    # Whole numbers beside missing cells stay whole.
    table = read.convert_dtypes()
    cells = (
        table.astype(object)
        .where(table.notna(), "")
        .map(lambda cell: float(cell) if isinstance(cell, float | Decimal) else str(cell))
    )
    cells.columns = [normal_name(str(name)) for name in table]
    return cells.set_axis(range(2, len(table) + 2))


def read_splits(source: Path, subset: str | None) -> dict[str, pd.DataFrame]:
    """Read a Hugging Face data set by part; classes are texts, and images have ``bytes`` and
    ``path``.

    Args:
        source: folder that ``save_to_disk`` wrote, or a name that ``datasets.load_dataset`` takes.
        subset: name of the configuration, or None.

    Raises:
        OSError: missing data.
        DatasetError: missing training split.
    """
    with extra("huggingface", needed_by="a Hugging Face data set"):
        import datasets
    datasets.disable_progress_bars()
    is_saved = any((source / name).exists() for name in ("dataset_dict.json", "state.json"))
    loaded = (
        datasets.load_from_disk(source)
        if is_saved
        else datasets.load_dataset(source.as_posix(), subset)
    )
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    parts = {}
    for role, data in choose_parts(splits, source=str(source)).items():
        places = [f"{source}, {role} part, row {number}" for number in range(len(data))]
        parts[role] = pd.DataFrame(data.to_dict(), index=places, dtype=object)
        for name, feature in data.features.items():
            if isinstance(feature, datasets.ClassLabel):  # a missing label is -1, which has no name
                parts[role][name] = parts[role][name].map(dict(enumerate(feature.names)))
    return parts


def check_columns(rows: pd.DataFrame, columns: Iterable[str]) -> None:
    """Raise DatasetError if a column is missing; the rows are indexed by their place."""
    if missing := [column for column in columns if column not in rows]:
        problem = (
            f"{rows.index[0].rpartition(', ')[0]} has no column {missing[0]!r}; it has "
            f"{shorten(list(rows))}"
        )
        raise DatasetError(
            f"{problem}; set data.text_column=NAME, data.label_column=NAME or data.delimiter"
        )


def texts(rows: pd.DataFrame, column: str) -> list[str]:
    """Return the cells of a column as texts without white space around them.

    Raises:
        DatasetError: no such column, an empty cell, or something other than a text or a number;
            names file and line.
    """
    check_columns(rows, [column])
    for place, cell in rows[column].items():
        if not isinstance(cell, str | int | float) or cell != cell or not str(cell).strip():
            problem = f"{place}: {column!r} is {cell!r}, expected a text"
            raise DatasetError(
                f"{problem}; fill it in or remove the row, or load the data by a function of your "
                "own"
            )
    return [str(cell).strip() for cell in rows[column]]


def labelled_rows(
    rows: pd.DataFrame, inputs: Iterable[Any], label_column: str, group_column: str | None = None
) -> pd.DataFrame:
    """Return inputs as examples with labels and groups of their rows, which are equal where they
    look alike; errors as for :func:`texts`."""
    examples = pd.DataFrame({"input": inputs}, index=rows.index, dtype=object)
    for name, column in (("label", label_column), ("group", group_column)):
        if column is not None:
            examples[name] = list(map(normal_name, texts(rows, column)))
    return examples


def read_texts(path: Path, *, kind: str, **options: Any) -> Parts:
    """Read texts and labels; arguments as for :func:`read_parts` and :func:`text_parts`."""
    delimiter = options.pop("delimiter", None)
    return text_parts(read_parts(path, kind=kind, delimiter=delimiter), **options)


def read_hub_texts(source: Path, *, subset: str | None = None, **options: Any) -> Parts:
    """Read texts and labels.

    Args:
        source, options: as for :func:`read_splits` and :func:`text_parts`.
        subset: name of the configuration, or None.
    """
    return text_parts(read_splits(source, subset), **options)


def text_parts(
    parts: Mapping[str, pd.DataFrame],
    *,
    text_column: str = "text",
    label_column: str = "label",
    group_column: str | None = None,
    **division: Any,
) -> Parts:
    """Return the texts and labels of the rows of each part that there is.

    Args:
        parts: rows by part.
        text_column: column of the texts.
        label_column: column of the labels.
        group_column: column of groups that stay in one part, such as authors.
        division: as for :func:`~.examples.divide`.

    Raises:
        DatasetError: missing columns, empty texts or labels, a class with too few examples; names
            file and line.
    """
    examples = {}
    for role, rows in parts.items():
        inputs = texts(rows, text_column)
        labelled_texts = labelled_rows(rows, inputs, label_column, group_column)
        examples[role] = labelled_texts.assign(key=list(map(comparable, inputs)))
    return labelled(examples, lambda inputs, labels: Texts(tuple(inputs), labels), **division)


def _read_json_lines(text: str, source: str) -> dict[int, dict[str, Any]]:
    rows = {}
    for line, content in enumerate(text.split("\n"), start=1):
        try:
            if row := json.loads(content.strip() or "{}"):
                rows[line] = {normal_name(name): cell for name, cell in row.items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise DatasetError(f"{source}, line {line} is no JSON object: {error}") from error
    return rows
