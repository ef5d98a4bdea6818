"""Stratified splits of labelled images or texts."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor

from probattn.experiments.data.dataset import Part

Data = TypeVar("Data", bound=Part)


def stratified_order(labels: Tensor, *, generator: Generator) -> Tensor:
    """Return a random order of the data, int64 (n,), of which every prefix is stratified by class.

    Classes of equal size differ by at most one example in any prefix, and no class is missing from a prefix that is at
    least as long as the number of classes.

    Args:
        labels: int64 (n,), not negative.
        generator: CPU generator; draws one permutation.
    """
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    classes, sizes = labels[order], labels.bincount()
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[classes]
    return order[(rank.double() / sizes[classes]).argsort(stable=True)]


def split(data: Data, *, sizes: Sequence[int], generator: Generator) -> tuple[Data, ...]:
    """Draw disjoint stratified parts of the given sizes, which are no more than all, each in the order of the data."""
    order = stratified_order(data.labels, generator=generator)[: sum(sizes)]
    return tuple(data.select(part.sort().values) for part in order.split(list(sizes)))


def subsample(train: Data, valid: Data, *, limit: int, num_classes: int, generator: Generator) -> tuple[Data, Data]:
    """Keep at most ``limit`` training examples and the same fraction of the validation part, stratified by class.

    At least ``num_classes`` validation examples are kept, if there are as many. A smaller limit keeps a subset of what
    a larger limit keeps.
    """
    sizes = limit, max(num_classes, round(min(1.0, limit / len(train)) * len(valid)))
    pairs = zip((train, valid), sizes, strict=True)
    return tuple(split(part, sizes=(min(size, len(part)),), generator=generator)[0] for part, size in pairs)
