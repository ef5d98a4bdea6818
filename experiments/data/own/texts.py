"""Texts with labels of a user's own, from CSV and JSON Lines files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from probattn.experiments.data.own.examples import Examples, class_indices, class_names, divide
from probattn.experiments.data.own.rows import Rows, read_parts
from probattn.experiments.data.text.labelled_texts import Texts


class TextParts(NamedTuple):
    """Classes, and texts of the three parts."""

    classes: tuple[str, ...]
    train: Texts
    valid: Texts
    test: Texts


def read(path: Path, *, kind: str, delimiter: str | None = None, **options: Any) -> TextParts:
    """Read texts and labels; arguments as for :func:`~.rows.read_parts` and :func:`text_parts`."""
    return text_parts(read_parts(path, kind=kind, delimiter=delimiter), **options)


def text_parts(parts: Mapping[str, Rows], *, text_column: str, label_column: str, **division: Any) -> TextParts:
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
        rows.check_columns(text_column=text_column, label_column=label_column)
        given[part] = Examples(rows.text(text_column), rows.labels(label_column), rows.places)
    examples = divide(given, by_class=True, **division)
    classes = class_names(examples["train"])
    texts = {part: Texts(tuple(group.inputs), class_indices(group, classes)) for part, group in examples.items()}
    return TextParts(classes, **texts)
