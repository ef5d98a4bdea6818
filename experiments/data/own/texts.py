"""Texts with labels of a user's own, from CSV and JSON Lines files, or from any rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.data.own.examples import Parts, labelled
from probattn.experiments.data.own.rows import check_columns, names, read_parts, texts
from probattn.experiments.data.text.labelled_texts import Texts


def read(path: Path, *, kind: str, delimiter: str | None = None, **options: Any) -> Parts:
    """Read texts and labels; arguments as for :func:`~.rows.read_parts` and :func:`text_parts`."""
    return text_parts(read_parts(path, kind=kind, delimiter=delimiter), **options)


def text_parts(parts: Mapping[str, pd.DataFrame], *, text_column: str, label_column: str, **division: Any) -> Parts:
    """Return the texts and labels of the rows of each part that there is.

    Args:
        parts: rows by part.
        text_column, label_column: columns of texts and labels.
        division: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: missing columns, empty texts or labels, a class with too few examples; names file and line.
    """
    given = {}
    for part, rows in parts.items():
        check_columns(rows, text_column=[text_column], label_column=[label_column])
        content = {"input": texts(rows, text_column), "label": names(rows, label_column)}
        given[part] = pd.DataFrame(content, index=rows.index, dtype=object)
    return labelled(given, lambda inputs, labels: Texts(tuple(inputs), labels), **division)
