"""Labelled examples of a user's files, their division into parts, and the classes of their labels.

Examples are a data frame with the columns ``input`` and ``label``; its index says where each was read, for messages.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from probattn.experiments.data.errors import DatasetError

# Names of the files, folders or splits of each part, recognised in any case, also as ``training_set``.
PARTS = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "eval", "evaluation", "dev", "development"),
    "test": ("test", "testing"),
}
_SUFFIX = re.compile(r"[-_ ]?(set|data|images)$")  # of names such as training_set
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\u2060\ufeff"))
_JOINERS = "\u200c\u200d"


class Parts(NamedTuple):
    """Classes, and the labelled images or texts of the three parts."""

    classes: tuple[str, ...]
    train: Any
    valid: Any
    test: Any


def normal_name(text: str) -> str:
    """Return the one spelling of a class's or column's name, for names that look alike.

    Its characters are composed (NFC), invisible ones vanish, and white space of any kind becomes single spaces.
    Surrogates, such as bytes of a file name that are not UTF-8, become escapes: the name can be printed and stored.
    """
    visible = unicodedata.normalize("NFC", text.translate(_INVISIBLE))
    return " ".join(visible.split()).strip(_JOINERS).encode("utf-8", "backslashreplace").decode()


def find_parts(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a folder or data set that are parts, by the name of the part.

    Args:
        entries: files, folders or splits by their names without suffix.

    Raises:
        DatasetError: two entries for one part.
    """
    parts = {}
    for part, spellings in PARTS.items():
        names = [name for name in entries if _SUFFIX.sub("", normal_name(name).casefold()) in spellings]
        if len(names) > 1:
            raise DatasetError(f"{' and '.join(names)} are both the {part} part: remove or rename one")
        if names:
            parts[part] = entries[names[0]]
    return parts


def labelled(given: Mapping[str, pd.DataFrame], convert: Callable[..., Any], **division: Any) -> Parts:
    """Return the classes and three parts of examples.

    Args:
        given: the parts that there are.
        convert: returns a part, such as images, of the inputs and the indices of their classes.
        division: options of :func:`divide`, and its errors.
    """
    parts = divide(given, **division)
    classes = class_names(parts["train"].label)
    return Parts(classes, *(convert(part.input, class_indices(part.label, classes)) for part in parts.values()))


def divide(
    given: Mapping[str, pd.DataFrame],
    *,
    shares: Mapping[str, float],
    seed: int,
    limit: int | None,
    by_class: bool = True,
) -> dict[str, pd.DataFrame]:
    """Return the training, validation and test part; missing ones are taken from the training part at random.

    Args:
        given: the parts that there are, ``"train"`` at least.
        shares: sizes of a missing ``"valid"`` and ``"test"`` part, as shares of the training part.
        seed: seed of the division only.
        limit: keep at most this many training examples, but one of each class, and the same fraction of the validation
            part; the test part keeps its size.
        by_class: divide each class in the same proportion.

    Raises:
        DatasetError: a part without examples; a class with too few to be in each part.
    """
    if empty := [part for part, examples in given.items() if examples.empty]:
        raise DatasetError(f"the {empty[0]} part holds no examples")
    generator = torch.Generator().manual_seed(seed)
    missing = {part: share for part, share in shares.items() if part not in given}
    divided = _take(given["train"], [*missing.values()], generator, by_class=by_class)
    parts = {**given, **dict(zip(("train", *missing), divided, strict=True))}
    if limit is not None and limit < len(parts["train"]):
        fraction = limit / len(parts["train"])
        for part in ("train", "valid"):
            parts[part] = _take(parts[part], [fraction], generator, by_class=by_class, at_most=True)[1]
    return {part: parts[part] for part in PARTS}


def class_names(labels: pd.Series) -> tuple[str, ...]:
    """Return the classes of the training part: numbers in their order, other names in that of the alphabet.

    Raises:
        DatasetError: fewer than two classes.
    """
    names = set(labels)
    if len(names) < 2:
        raise DatasetError(f"all training examples, such as {labels.index[0]}, have the label {labels.iloc[0]!r}")
    are_integers = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=int if are_integers else str))


def class_indices(labels: pd.Series, classes: Sequence[str]) -> torch.Tensor:
    """Return the indices of the labels, int64 (n,).

    Raises:
        DatasetError: a label that no training example has.
    """
    indices = pd.Index(classes).get_indexer(pd.Index(labels))
    for place, label in labels[indices < 0].items():
        known = shorten(classes)
        raise DatasetError(f"{place} has the label {label!r}, which no training example has; they have {known}")
    return torch.from_numpy(indices.astype(np.int64))


def shorten(names: Sequence[str], *, limit: int = 8) -> str:
    """Return names in a sentence; of many the first ones and how many more there are."""
    shown = ", ".join(map(repr, names[:limit]))
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def _take(
    examples: pd.DataFrame, shares: list[float], generator: torch.Generator, *, by_class: bool, at_most: bool = False
) -> list[pd.DataFrame]:
    """Return the rest, then a random part of the examples for each share, each in the order of the data.

    Every part gets one example of each class at least; with ``at_most`` a single example goes to the part.
    """
    rest, *parts = ([] for _ in (0, *shares))
    keys = examples.label.to_numpy() if by_class else np.full(len(examples), "the training part")
    for key, group in pd.Series(range(len(examples))).groupby(keys, sort=False):
        order = group.to_numpy()[torch.randperm(len(group), generator=generator).numpy()].tolist()
        for part, share in zip(parts, shares, strict=True):
            size = max(1, int(share * len(group)))
            part += order[:size]
            del order[:size]
        if not order and shares and not at_most:
            place, where = examples.index[group.iloc[0]], f"the class {key!r}" if by_class else key
            problem = f"{where} has examples ({len(group)}, such as {place}) for fewer than {len(shares) + 1} parts"
            raise DatasetError(f"{problem}: add more, or give each part a file or folder")
        rest += order
    return [examples.iloc[sorted(positions)] for positions in (rest, *parts)]
