"""Labelled examples of a user's files, their division into parts, and the classes of their labels.

Examples are a data frame with the columns ``input`` and ``label``; its index says where each was read, for messages.
"""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
Parts = tuple[Any, ...]  # the classes, and the labelled images or texts of the training, validation and test part
_log = logging.getLogger(__name__)


def normal_name(text: str) -> str:
    """Return the one spelling of a class's or column's name, for names that look alike.

    Its characters are composed (NFC), invisible ones vanish, and white space of any kind becomes single spaces.
    Surrogates, such as bytes of a file name that are not UTF-8, become escapes: the name can be printed and stored.
    """
    visible = unicodedata.normalize("NFC", text.translate(_INVISIBLE))
    return " ".join(visible.split()).strip(_JOINERS).encode("utf-8", "backslashreplace").decode()


def find_parts(names: Iterable[str]) -> dict[str, str]:
    """Return which of the names of files, folders or splits are parts, by the name of the part.

    Raises:
        DatasetError: two names for one part.
    """
    parts: dict[str, str] = {}
    for name_of_part, spellings in PARTS.items():
        matching = [name for name in names if _SUFFIX.sub("", normal_name(Path(name).stem).casefold()) in spellings]
        if len(matching) > 1:
            raise DatasetError(f"{' and '.join(matching)} are both the {name_of_part} part: remove or rename one")
        parts |= {name_of_part: matching[0]} if matching else {}
    return parts


def choose_parts(entries: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the files or splits that are parts, by the name of the part; log which others there are.

    Args:
        entries: files or splits by name.
        source: their folder or data set, for messages.

    Raises:
        DatasetError: no training part, or two entries for one part.
    """
    parts = find_parts(entries)
    others = shorten([name for name in entries if name not in parts.values()])
    if "train" not in parts:
        raise DatasetError(f"{source} has no training part: call it train; there are {others or 'no data'}")
    if others:
        _log.warning("%s: %s have no name of a part and are left out", source, others)
    return {role: entries[name] for role, name in parts.items()}


def labelled(given: Mapping[str, pd.DataFrame], convert: Callable[..., Any], **division: Any) -> Parts:
    """Return the classes and three parts of examples.

    Args:
        given: the parts that there are.
        convert: returns a part, such as images, of the inputs and the indices of their classes.
        division: options of :func:`divide`.
    """
    parts = divide(given, **division)
    classes = class_names(parts["train"].label)
    return classes, *(convert(examples.input, class_indices(examples.label, classes)) for examples in parts.values())


def divide(
    given: Mapping[str, pd.DataFrame], *, shares: Mapping[str, float], seed: int, limit: int | None
) -> dict[str, pd.DataFrame]:
    """Return the training, validation and test part; missing ones are taken from the training part at random.

    Each label is divided in the same proportion.

    Args:
        given: the parts that there are, ``"train"`` at least.
        shares: sizes of a missing ``"valid"`` and ``"test"`` part, as shares of the training part.
        seed: seed of the division only.
        limit: keep at most this many training examples, but one of each class, and the same fraction of the validation
            part; the test part keeps its size.
    """
    generator = torch.Generator().manual_seed(seed)
    missing = {role: share for role, share in shares.items() if role not in given}
    divided = _take(given["train"], [*missing.values()], generator)
    parts = {**given, **dict(zip(("train", *missing), divided, strict=True))}
    if limit is not None and limit < len(parts["train"]):
        fraction = limit / len(parts["train"])
        parts |= {role: _take(parts[role], [fraction], generator)[1] for role in ("train", "valid")}
    return {role: parts[role] for role in PARTS if role in parts}


def class_names(labels: pd.Series) -> tuple[str, ...]:
    """Return the classes of the training part: numbers in their order, other names in that of the alphabet."""
    names = set(labels)
    are_integers = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=int if are_integers else str))


def class_indices(labels: pd.Series, classes: Sequence[str]) -> torch.Tensor:
    """Return the indices of the labels, int64 (n,).

    Raises:
        DatasetError: a label that no training example has.
    """
    indices = pd.Index(classes).get_indexer(pd.Index(labels))
    for place, label in labels[indices < 0].items():
        problem = f"{place} has the label {label!r}, which no training example has; they have {shorten(classes)}"
        raise DatasetError(f"{problem}: add more examples of {label!r}, or remove it")
    return torch.from_numpy(indices)


def shorten(names: Sequence[str]) -> str:
    """Return names in a sentence; of many the first twelve and how many more there are."""
    shown = ", ".join(map(repr, names[:12]))
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


def _take(examples: pd.DataFrame, shares: Sequence[float], generator: torch.Generator) -> list[pd.DataFrame]:
    """Return the rest, then a random part of the examples for each share, each in the order of the data.

    Every part gets one example of each label at least, as long as there are any.
    """
    positions: list[list[int]] = [[] for _ in (0, *shares)]
    for _, group in pd.Series(range(len(examples))).groupby(examples.label.to_numpy(), sort=False):
        order = group.to_numpy()[torch.randperm(len(group), generator=generator).numpy()].tolist()
        for chosen, share in zip(positions[1:], shares, strict=True):
            size = max(1, int(share * len(group)))
            chosen += order[:size]
            del order[:size]
        positions[0] += order
    return [examples.iloc[sorted(rows)] for rows in positions]
