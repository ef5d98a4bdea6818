"""Batches of one training step, whose gradients are added up as if they were one batch."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from probattn.inference.distributed.batch_sharding import ShardedLoader


class StepBatches(NamedTuple):
    """Batches of one training step, on this rank.

    Args:
        tensors: the tensors of each batch.
        loss_weights: factor of each batch's loss, with which their sum is the loss of all examples as one batch: the KL
            divergence counts once.
        examples: number of examples on all ranks.
        numbers: numbers of the first and of the last batch in the epoch.
    """

    tensors: list[tuple[Tensor, ...]]
    loss_weights: list[float]
    examples: int
    numbers: tuple[int, int]

    def __str__(self) -> str:
        first, last = self.numbers
        return f"batch {first}" if first == last else f"batches {first} to {last}"


def step_batches(loader: ShardedLoader, size: int) -> Iterator[StepBatches]:
    """Yield ``size`` consecutive batches for each step; the last step may have fewer."""
    iterator, number = iter(loader), 0
    while group := list(islice(iterator, size)):
        examples = sum(each.batch_size for each in group)
        weights = [each.loss_weight * (each.batch_size / examples) for each in group]
        yield StepBatches([each.tensors for each in group], weights, examples, (number, number + len(group) - 1))
        number += len(group)
