"""Texts with labels from CSV and JSON Lines files."""

from pathlib import Path
from typing import NamedTuple

from probattn.experiments.data.own.examples import Examples, Shares, class_indices, class_names, divide
from probattn.experiments.data.own.rows import read_parts
from probattn.experiments.data.text.labelled_texts import Texts


class TextParts(NamedTuple):
    """Classes, and texts of the three parts."""

    classes: tuple[str, ...]
    train: Texts
    valid: Texts
    test: Texts


def read(
    path: Path,
    *,
    kind: str,
    text_column: str,
    label_column: str,
    delimiter: str | None,
    shares: Shares,
    seed: int,
    limit: int | None,
) -> TextParts:
    """Read texts and labels of one file, or of the files ``train``, ``valid`` and ``test`` of a folder.

    Args:
        path, kind, delimiter: as for :func:`~probattn.experiments.data.own.rows.read_parts`.
        text_column, label_column: columns of texts and labels.
        shares, seed, limit: as for :func:`~probattn.experiments.data.own.examples.divide`.

    Raises:
        DatasetError: missing columns, empty texts or labels, a class with too few examples; names file and line.
    """
    given = {}
    for part, rows in read_parts(path, kind=kind, delimiter=delimiter).items():
        rows.check_columns(text_column=text_column, label_column=label_column)
        given[part] = Examples(rows.text(text_column), rows.text(label_column), rows.places)
    return from_examples(given, shares=shares, seed=seed, limit=limit)


def from_examples(given: dict[str, Examples], *, shares: Shares, seed: int, limit: int | None) -> TextParts:
    """Return the parts of examples whose inputs are texts; arguments and errors as for :func:`read`."""
    parts = divide(given, shares=shares, seed=seed, limit=limit, by_class=True)
    classes = class_names(parts["train"])
    texts = {name: Texts(tuple(each.inputs), class_indices(each, classes)) for name, each in parts.items()}
    return TextParts(classes, **texts)
