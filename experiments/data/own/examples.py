"""Labelled examples of a user's files, their division into parts, and the classes of their labels."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch

from probattn.experiments.data.errors import DatasetError

PARTS = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "eval", "evaluation", "dev", "development"),
    "test": ("test", "testing"),
}
"""Names of the files, folders or splits of each part, recognised in any case, also as ``training_set``."""
_SUFFIX = re.compile(r"[-_ ]?(set|data|images)$")  # of names such as training_set
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\u2060\ufeff"))
_JOINERS = "\u200c\u200d"


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs with their labels as they are written, and where each was read.

    Args:
        inputs: one per example.
        labels: one per example, as text.
        places: file and line of each, for messages.
    """

    inputs: Sequence[Any]
    labels: Sequence[str]
    places: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Sequence[int]) -> Self:
        """Return the examples at these positions."""
        return type(self)(*([values[index] for index in indices] for values in (self.inputs, self.labels, self.places)))


class Shares(NamedTuple):
    """Shares of the training part that become the validation and the test part where the data have none."""

    valid: float
    test: float


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


def divide(
    given: Mapping[str, Examples], *, shares: Shares, seed: int, limit: int | None, by_class: bool
) -> dict[str, Examples]:
    """Return the training, validation and test part; missing ones are taken from the training part at random.

    Args:
        given: the parts that there are, ``"train"`` at least.
        shares: sizes of missing parts.
        seed: seed of the division only.
        limit: keep at most this many training examples, but one of each class, and the same fraction of the validation
            part; the test part keeps its size.
        by_class: divide each class in the same proportion.

    Raises:
        DatasetError: a part without examples; a class with too few to be in each part.
    """
    if empty := [part for part, examples in given.items() if not len(examples)]:
        raise DatasetError(f"the {empty[0]} part holds no examples")
    generator = torch.Generator().manual_seed(seed)
    parts, train = dict(given), given["train"]
    missing = {part: share for part, share in shares._asdict().items() if part not in given}
    divided = _take(train, [*missing.values()], generator, by_class=by_class)
    parts |= {"train": divided[0]} | dict(zip(missing, divided[1:], strict=True))
    if limit is not None and limit < len(parts["train"]):
        fraction = limit / len(parts["train"])
        for part in ("train", "valid"):
            parts[part] = _take(parts[part], [fraction], generator, by_class=by_class, at_most=True)[1]
    return {part: parts[part] for part in PARTS}


def class_names(train: Examples) -> tuple[str, ...]:
    """Return the classes of the training part: numbers in their order, other names in that of the alphabet.

    Raises:
        DatasetError: fewer than two classes.
    """
    names = set(train.labels)
    if len(names) < 2:
        raise DatasetError(f"all training examples, such as {train.places[0]}, have the label {train.labels[0]!r}")
    are_integers = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=int if are_integers else str))


def class_indices(examples: Examples, classes: Sequence[str]) -> torch.Tensor:
    """Return the indices of the labels, int64 (n,).

    Raises:
        DatasetError: a label that no training example has.
    """
    indices = {name: index for index, name in enumerate(classes)}
    for label, place in zip(examples.labels, examples.places, strict=True):
        if label not in indices:
            known = shorten(classes)
            raise DatasetError(f"{place} has the label {label!r}, which no training example has; they have {known}")
    return torch.tensor([indices[label] for label in examples.labels])


def shorten(names: Sequence[str], *, limit: int = 8) -> str:
    """Return names in a sentence; of many the first ones and how many more there are."""
    shown = ", ".join(map(repr, names[:limit]))
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def _take(
    examples: Examples, shares: Sequence[float], generator: torch.Generator, *, by_class: bool, at_most: bool = False
) -> list[Examples]:
    """Return the rest, then a random part of the examples for each share, each in the order of the data.

    Every part gets one example of each class at least; with ``at_most`` a single example goes to the part.
    """
    groups: dict[str, list[int]] = {}
    for index, label in enumerate(examples.labels):
        groups.setdefault(label if by_class else "", []).append(index)
    parts: list[list[int]] = [[] for _ in (0, *shares)]
    for label, group in groups.items():
        order = [group[index] for index in torch.randperm(len(group), generator=generator).tolist()]
        for number, share in enumerate(shares, start=1):
            size = max(1, int(share * len(group)))
            parts[number] += order[:size]
            order = order[size:]
        if not order and shares and not at_most:
            where = f"the class {label!r}" if by_class else "the training part"
            raise DatasetError(
                f"{where} has examples ({len(group)}, such as {examples.places[group[0]]}) for fewer than {len(parts)} "
                "parts: add more, or give each part a file or folder"
            )
        parts[0] += order
    return [examples.select(sorted(indices)) for indices in parts]
