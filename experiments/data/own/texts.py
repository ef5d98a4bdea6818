"""Texts with labels of a user's own: CSV and JSON Lines files, and Hugging Face data sets."""

from collections.abc import Mapping
from typing import NamedTuple

from probattn.experiments.data.own.examples import Examples, Shares, class_indices, class_names, divide
from probattn.experiments.data.own.rows import Rows
from probattn.experiments.data.text.labelled_texts import Texts


class TextParts(NamedTuple):
    """Classes, and texts of the three parts."""

    classes: tuple[str, ...]
    train: Texts
    valid: Texts
    test: Texts


def text_parts(
    parts: Mapping[str, Rows], *, text_column: str, label_column: str, shares: Shares, seed: int, limit: int | None
) -> TextParts:
    """Return the texts and labels of rows, divided into parts.

    Args:
        parts: rows of the parts that there are (see :func:`~.rows.read_parts` and
            :func:`~.hugging_face_sets.read_splits`).
        text_column, label_column: columns of texts and labels.
        shares, seed, limit: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: missing columns, empty texts or labels, a class with too few examples; names file and line.
    """
    given = {}
    for part, rows in parts.items():
        rows.check_columns(text_column=text_column, label_column=label_column)
        given[part] = Examples(rows.text(text_column), rows.labels(label_column), rows.places)
    examples = divide(given, shares=shares, seed=seed, limit=limit, by_class=True)
    classes = class_names(examples["train"])
    texts = {part: Texts(tuple(group.inputs), class_indices(group, classes)) for part, group in examples.items()}
    return TextParts(classes, **texts)
