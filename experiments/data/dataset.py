"""Labelled examples, and data sets of a training, validation and test part: what images, texts and
tables share."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import pandas as pd
import torch
from pydantic import BaseModel, Field, FiniteFloat, PositiveInt, model_validator
from torch import Generator, Tensor

from probattn.experiments.data.batch_loader import BatchLoader
from probattn.experiments.data.errors import DatasetError
from probattn.inference.io.files import read_json, undamaged, write_bytes

Root = str | os.PathLike[str] | None  # folder of all data sets
PREPROCESSING = "preprocessing.json"  # in a run's folder
Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]  # type of a standard deviation


class Part:
    """Base of labelled examples: dataclasses of inputs, a tensor or a tuple, and of ``labels`` (n,
    ...)."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def _values(self) -> list[Any]:
        """The inputs and the labels; keyword-only fields say what files hold beside them."""
        named = fields(cast(Any, self))
        return [getattr(self, field.name) for field in named if not field.kw_only]

    @cached_property
    def digest(self) -> str:
        """Digest of the inputs and labels, computed once."""
        return digest(*self._values)

    @cached_property
    def keys(self) -> list[str]:
        """Digest of each input without its label, computed once: equal inputs have equal keys."""
        return list(map(digest, self._values[0]))

    def select(self, indices: Tensor) -> Self:
        """Return the examples at ``indices``, int64 (m,), in that order."""

        def take(values: Any) -> Any:
            if isinstance(values, Tensor):
                return values[indices]
            return tuple(map(values.__getitem__, indices.tolist()))

        return type(self)(*map(take, self._values))

    def split(self, *sizes: int, generator: Generator) -> tuple[Self, ...]:
        """Draw disjoint parts, stratified by class, each in the order of the data.

        Args:
            sizes: numbers of examples, in total no more than all.
            generator: as for :func:`stratified_order`.
        """
        order = stratified_order(self.labels, generator=generator)[: sum(sizes)]
        return tuple(self.select(indices.sort().values) for indices in order.split(sizes))

    def divide(
        self, *test: Self, sizes: Sequence[int], classes: int, seed: int, limit: int | None
    ) -> tuple[Self, ...]:
        """Return the training, validation and test part of a known data set, stratified by class.

        Args:
            test: the test part, if it has one of its own.
            sizes: numbers of examples of the parts other than the training part, which are taken
                from these examples.
            classes: number of classes.
            seed: seed of the division only.
            limit: keep at most this many training examples and the same fraction of the validation
                part, but at least ``classes`` if there are as many; the test part keeps its size. A
                smaller limit keeps a subset of what a larger limit keeps.
        """
        generator = Generator().manual_seed(seed)
        train, valid, *others = self.split(len(self) - sum(sizes), *sizes, generator=generator)
        if limit is not None:
            limits = limit, max(classes, round(min(1.0, limit / len(train)) * len(valid)))
            pairs = zip((train, valid), limits, strict=True)
            train, valid = (
                few.split(min(size, len(few)), generator=generator)[0] for few, size in pairs
            )
        return train, valid, *others, *test


def stratified_order(labels: Tensor, *, generator: Generator) -> Tensor:
    """Return a random order of the data, int64 (n,), of which every prefix is stratified by class.

    Classes of equal size differ by at most one example in any prefix, and no class is missing from
    a prefix that is at least as long as the number of classes.

    Args:
        labels: int64 (n,), not negative.
        generator: CPU generator; draws one permutation.
    """
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    classes = labels[order]
    sizes = labels.bincount()
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[classes]
    return order[(rank.double() / sizes[classes]).argsort(stable=True)]


def data_root(root: Root) -> Path:
    """Return the root folder of the data sets: ``root``, else ``$PROBATTN_DATA``, else ``data``.

    Raises:
        DatasetError: it is a file.
    """
    folder = Path(root or os.environ.get("PROBATTN_DATA") or "data").expanduser()
    if folder.is_file():
        raise DatasetError(
            f"{folder} is a file; --data is the folder of the data sets for this preset"
        )
    return folder


def digest(*values: Any) -> str:
    """Return the SHA-256 digest of tensors, with dtype and shape, and of values of JSON, in
    hexadecimal digits."""
    sha = hashlib.sha256()
    for value in values:
        is_tensor = isinstance(value, Tensor)
        content = value.cpu().numpy().tobytes() if is_tensor else json.dumps(value).encode()
        form = [str(value.dtype), *value.shape] if is_tensor else "JSON"
        sha.update(f"{form} {len(content)} ".encode() + content)
    return sha.hexdigest()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Base of data sets.

    Attributes:
        name: name of the data set.
        classes: names, in the order of the labels; empty for regression.
        train, valid, test: disjoint parts.
        domains: test sets of other domains, by name.
        notes: what readers have said about the files, such as what they have left out.

    Raises:
        DatasetError: a part is empty, or all labels of the training part are the same.
    """

    name: str
    classes: tuple[str, ...]
    train: Any
    valid: Any
    test: Any
    domains: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        labels = self.train.labels
        for name, part in (("training", labels), ("validation", self.valid), ("test", self.test)):
            if not len(part):
                reason = "a class, or a group, of too few examples is in the training part alone"
                raise DatasetError(f"{self.name}: the {name} part has no examples; {reason}")
        if len(labels) > 1 and (labels == labels[0]).all():
            raise DatasetError(f"{self.name}: all training examples have the same label")

    def batches(self, examples: Any, /, **options: Any) -> BatchLoader:
        """Return a loader of any examples in their order; options of the loader."""
        raise NotImplementedError

    def preprocessing(self) -> dict[str, Any]:
        """Return what turns new inputs into those of the network."""
        raise NotImplementedError

    def unseen(self, part: Any) -> pd.DataFrame:
        """Return what the network does not see of each example, or has not seen in training, as
        shares.

        A row for each example, a column for each kind; images have none.
        """
        return pd.DataFrame(index=range(len(part)))

    def training(self, **options: Any) -> BatchLoader:
        """Return the loader of training batches, in random order; options of the loader."""
        return self.batches(self.train, shuffle=True, **options)

    def sample(self, number: int, *, generator: Generator) -> tuple[Tensor, ...]:
        """Return one batch of ``number`` random training examples, not augmented."""
        chosen = torch.randperm(len(self.train), generator=generator)[:number]
        return next(iter(self.batches(self.train.select(chosen), batch_size=number)))

    def save_preprocessing(self, folder: Path) -> None:
        """Write ``preprocessing.json`` into a run's folder, atomically, unless it is there already.

        The JSON object holds what turns new inputs into those of the network, and the names of the
        classes.

        ======  =======================================================================
        kind    keys besides ``classes``
        ======  =======================================================================
        images  ``shape`` (C, H, W), ``mean`` and ``std`` per channel of pixels in 0..1
        texts   ``tokens`` (see ``to_json`` of the tokenizer of words and the encoders)
        table   ``columns`` (see ``tables.encoding.TableEncoding``), ``label_column``,
                and ``label_mean`` and ``label_std`` of the training labels
        ======  =======================================================================
        """
        if not (folder / PREPROCESSING).exists():
            content = json.dumps({"classes": self.classes, **self.preprocessing()}, indent=2)
            write_bytes(folder / PREPROCESSING, f"{content}\n".encode(), tag="part")

    def for_run(self, folder: Path) -> Self:
        """Return the data set as the run in ``folder`` reads it: this one, unless it has saved
        more."""
        return self


class Preprocessing(BaseModel, extra="allow"):
    """Schema of what all kinds of ``preprocessing.json`` hold; each kind has further values."""

    kind: Literal["images", "texts", "table"]
    classes: tuple[str, ...]
    shape: tuple[PositiveInt, PositiveInt, PositiveInt] = (1, 1, 1)
    mean: tuple[FiniteFloat, ...] = (0.0,)
    std: tuple[Scale, ...] = (1.0,)
    label_mean: FiniteFloat = 0.0
    label_std: Scale = 1.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("two classes have the same name")
        if not len(self.mean) == len(self.std) == self.shape[0]:
            raise ValueError("mean and std must have a value for each channel")
        return self


def read_preprocessing(folder: Path) -> dict[str, Any]:
    """Return the preprocessing of the run in a folder; raise DatasetError if it is missing or
    damaged."""
    path = folder / PREPROCESSING
    with undamaged(path, DatasetError):
        content = read_json(path)
        Preprocessing.model_validate(content)
        return content
