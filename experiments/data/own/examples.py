"""Labelled examples of a user's files, their division into parts, and the classes of their labels.

Examples are a data frame with the columns ``input`` and ``label``; its index says where each was
read, for messages. Examples with the same ``key``, which equal inputs have, or ``group`` stay in
one part; these columns may be missing.
"""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from probattn.experiments.data.errors import DatasetError

# Names of the files, folders or splits of each part, recognised in any case, also as
# ``training_set``.
PARTS = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "eval", "evaluation", "dev", "development"),
    "test": ("test", "testing"),
}
_SUFFIX = re.compile(r"[-_ ]?(set|data|images)$")  # of names such as training_set
# Words of other names that may be those of parts, such as train2017, fold1, tr and te.
_LIKE_PARTS = {*PARTS["train"], *PARTS["valid"], *PARTS["test"], "fold", "split", "tr", "va", "te"}
_WORD = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+")  # also in names such as trainA and TrainSet
# Inputs that occur as often on average are values, such as those of few categories, and no copies.
_MANY_COPIES = 5
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\u2060\ufeff"))
_JOINERS = "\u200c\u200d"
Parts = tuple[
    Any, ...
]  # the classes, and the labelled images or texts of the training, validation and test part
# Number of names that a message lists.
MAX_NAMES = 12
_log = logging.getLogger(__name__)


def normal_name(text: str) -> str:
    """Return the one spelling of a class's or column's name, for names that look alike.

    Its characters are composed (NFC), invisible ones vanish, and white space of any kind becomes
    single spaces. Surrogates, such as bytes of a file name that are not UTF-8, become escapes: the
    name can be printed and stored.
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
        matching = [name for name in names if _plain_name(name) in spellings]
        if len(matching) > 1:
            raise DatasetError(
                f"{' and '.join(matching)} are both the {name_of_part} part: remove or rename one"
            )
        if matching:
            parts[name_of_part] = matching[0]
    return parts


def _plain_name(name: str) -> str:
    """Return the name of a file, folder or split in lower case, without ``.csv``, ``_set`` and the
    like."""
    return _SUFFIX.sub("", normal_name(Path(name.removesuffix(".gz")).stem).casefold())


def part_likeness(name: str) -> int:
    """Return 2 for a name like that of a part, such as ``train2017``, 1 for ``seg_train``, else
    0."""
    words = {_SUFFIX.sub("", word.casefold()) for word in _WORD.findall(name) if len(word) > 1}
    return len(words & _LIKE_PARTS) and 1 + (words <= _LIKE_PARTS)


def choose_parts(entries: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the files or splits that are parts, by the name of the part; log which others there
    are.

    Args:
        entries: files or splits by name.
        source: their folder or data set, for messages.

    Raises:
        DatasetError: no training part, or two entries for one part.
    """
    parts = find_parts(entries)
    others = shorten([name for name in entries if name not in parts.values()])
    if "train" not in parts:
        raise DatasetError(
            f"{source} has no training part: call it train; there are {others or 'no data'}"
        )
    if others:
        _log.warning("%s: left out, without the name of a part: %s", source, others)
    return {role: entries[name] for role, name in parts.items()}


def labelled(
    given: Mapping[str, pd.DataFrame], convert: Callable[..., Any], **division: Any
) -> Parts:
    """Return the classes and three parts of examples.

    Args:
        given: the parts that there are.
        convert: returns a part, such as images, of the inputs and the indices of their classes.
        division: options of :func:`divide`.
    """
    parts = divide(given, **division)
    for role, examples in parts.items():
        place, label = next(iter(examples.label.items()), ("", ""))
        _log.info("the %s part begins with %s: %r", role, place, label)
    classes = class_names(parts["train"].label)
    return classes, *(
        convert(examples.input, class_indices(examples.label, classes))
        for examples in parts.values()
    )


def divide(
    given: Mapping[str, pd.DataFrame], *, shares: Mapping[str, float], seed: int, limit: int | None
) -> dict[str, pd.DataFrame]:
    """Return the training, validation and test part; missing ones are taken from the training part
    at random.

    Each label is divided in the same proportion. One of few examples is in the training part at
    least.

    Args:
        given: the parts that there are, ``"train"`` at least.
        shares: sizes of a missing ``"valid"`` and ``"test"`` part, as shares of the training part.
        seed: seed of the division only.
        limit: keep at most this many training examples, but one of each class, and the same
            fraction of the validation part; the test part keeps its size.
    """
    generator = torch.Generator().manual_seed(seed)
    missing = {role: share for role, share in shares.items() if role not in given}
    train = given["train"]
    sizes = list(missing.values())
    divided = _take(train, sizes, generator, sets=_sets(train))
    if "key" in train and not all(map(len, divided)):
        _log.warning("too few inputs differ: equal ones may be in several parts")
        divided = _take(train, sizes, generator, sets=_sets(train.drop(columns="key")))
    parts = {**given, **dict(zip(("train", *missing), divided, strict=True))}
    for role in given.keys() - {"train"}:
        if "group" in train and (count := given[role].group.isin(train.group).sum()):
            _log.warning("%s part: %s examples have a group of the training part", role, count)
    if limit is not None and limit < len(parts["train"]):
        fraction = limit / len(parts["train"])
        for role in ("train", "valid"):
            single = np.arange(len(parts[role]))
            parts[role] = _take(parts[role], [fraction], generator, sets=single, keep_each=False)[1]
    return {role: parts[role] for role in PARTS if role in parts}


def class_names(labels: pd.Series) -> tuple[str, ...]:
    """Return the classes of the training part: numbers in their order, other names in that of the
    alphabet."""
    names = set(labels)
    are_integers = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return tuple(sorted(names, key=int if are_integers else str))


def class_indices(labels: pd.Series, classes: Sequence[str]) -> torch.Tensor:
    """Return the indices of the labels, int64 (n,).

    Raises:
        DatasetError: a label that no training example has.
    """
    indices = pd.Index(classes).get_indexer(pd.Index(labels))
    unknown = labels[indices < 0].drop_duplicates()
    if len(unknown):
        named = [f"{label!r} ({place})" for place, label in unknown[:MAX_NAMES].items()]
        problem = (
            f"no training example has {len(unknown)} of the labels, such as {', '.join(named)}"
        )
        advice = "add examples of these labels, or remove them"
        raise DatasetError(f"{problem}; they have {shorten(classes)}: {advice}")
    return torch.from_numpy(indices)


def shorten(names: Sequence[str]) -> str:
    """Return names in a sentence; of many the first twelve and how many more there are."""
    shown = ", ".join(map(repr, names[:MAX_NAMES]))
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown


def _sets(examples: pd.DataFrame) -> np.ndarray:
    """Return each example's set, int64 (n,): examples of one key or one group are in one set."""
    numbers = pd.Series(range(len(examples)))
    keys = examples.get("key", numbers)
    groups = examples.get("group", numbers)
    if len(examples) >= _MANY_COPIES * keys.nunique():
        _log.warning("few inputs differ: equal ones may be in several parts")
        keys = numbers
    # Nodes of a graph are the keys and the groups; each example joins its own two.
    ends = pd.factorize(keys)[0], pd.factorize(groups)[0] + keys.nunique()
    size = int(ends[1].max()) + 1
    graph = coo_matrix((np.ones(len(examples)), ends), shape=(size, size))
    return connected_components(graph, directed=False)[1][ends[0]]


def _take(
    examples: pd.DataFrame,
    shares: Sequence[float],
    generator: torch.Generator,
    *,
    sets: np.ndarray,
    keep_each: bool = True,
) -> list[pd.DataFrame]:
    """Return the rest, then a random part of the examples for each share, each in the order of the
    data.

    Args:
        examples: with their labels.
        shares: of the parts.
        generator: of the random order.
        sets: number of the set of each example, int64 (n,); a set stays in one part.
        keep_each: leave a set of each label for the rest. Each part gets one, too, while there are
            any, the last part first.
    """
    orders = []  # of the sets of each label: their sizes, in random order
    for _, members in pd.Series(sets).groupby(examples.label.to_numpy(), sort=False):
        order = torch.randperm(len(members), generator=generator).numpy()
        orders.append(Counter(members.to_numpy()[order].tolist()))
    part_of = dict[int, int]()  # of each set, 0 of those that are left
    for sizes in sorted(orders, key=len):
        free = [number for number in sizes if number not in part_of]
        if keep_each and free and not any(part_of.get(number) == 0 for number in sizes):
            part_of[free[-1]] = 0
        for part, share in enumerate(shares, start=1):
            target = max(1, int(share * sizes.total()))
            size = sum(sizes[number] for number in sizes if part_of.get(number) == part)
            free = [number for number in sizes if number not in part_of]
            spare = len(free) - (len(shares) - part)
            # Sets that fit come first, in their order; a larger one is taken only if the part has
            # none.
            for number in sorted(free, key=lambda number: max(target, sizes[number])):
                if spare > 0 and size < target and (size == 0 or size + sizes[number] <= target):
                    part_of[number] = part
                    size += sizes[number]
                    spare -= 1
    parts = pd.Series(sets).map(part_of).fillna(0).to_numpy()
    return [examples[parts == part] for part in range(len(shares) + 1)]
