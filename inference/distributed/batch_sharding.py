"""Sharding of training batches over the ranks of torchrun."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor
from torch.utils.data import DistributedSampler

from probattn.inference.batches import unpack_batch
from probattn.inference.distributed import random_state
from probattn.inference.distributed.collectives import gather_results, world
from probattn.inference.io.digest import digest


class RankBatch(NamedTuple):
    """Rows of a batch that one rank trains on.

    Args:
        tensors: rows of each tensor of the batch.
        loss_weight: factor of their loss.
        batch_size: number of examples of the whole batch.
    """

    tensors: tuple[Tensor, ...]
    loss_weight: float
    batch_size: int


class ShardedLoader:
    """Every ``world``-th row of each batch of a loader, from ``rank`` on, with the weight of its loss.

    The ELBO of a batch is the mean of the ELBOs of its parts weighted by their sizes: likelihood, penalties and KL. DDP
    averages over ranks without weights, so each rank multiplies its loss by ``world · own / batch_size``. Then the KL
    counts once, and the objective is that of the whole batch, whatever the number of ranks.

    A rank without a row gets the first one with a weight of 0.

    Args:
        loader: sized; yields the same batches on all ranks.
        rank, world: number of this rank, and of all ranks.
    """

    def __init__(self, loader: Iterable, *, rank: int, world: int) -> None:
        self.loader, self.rank, self.world = loader, rank, world

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[RankBatch]:
        """Yield this rank's rows of each batch."""
        for batch in (unpack_batch(each).arguments() for each in self.loader):
            size = len(batch[0])
            own = len(range(self.rank, size, self.world))
            rows = slice(self.rank, None, self.world) if own else slice(0, 1)
            yield RankBatch(tuple(each[rows].contiguous() for each in batch), self.world * own / size, size)


def shard(loader: Iterable) -> ShardedLoader:
    """Return this rank's rows of each batch of a loader (all of them without torchrun).

    Raises:
        ValueError: a loader that would not yield the same batches on all ranks; says how to build it.
    """
    rank, size = world()
    if size > 1:
        _check_same_order(loader)
    return ShardedLoader(loader, rank=rank, world=size)


def _check_same_order(loader: Iterable) -> None:
    """Refuse loaders whose batches would differ between ranks."""
    batched = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batched, getattr(batched, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            raise ValueError(
                "a DistributedSampler would shard the examples a second time: every rank takes its rows of each batch, "
                "so pass the same loader on all ranks, DataLoader(…, shuffle=True, generator=torch.Generator())"
            )
        if getattr(sampler, "generator", True) is None:
            raise ValueError(
                f"the training loader's {type(sampler).__name__} has no generator, so each rank would see different "
                "batches: DataLoader(…, generator=torch.Generator().manual_seed(seed))"
            )
    seen = gather_results(lambda: (len(loader), digest(random_state.capture(loader)["generators"])))
    differing = [number for number, each in enumerate(seen) if each != seen[0]]
    if differing:
        raise ValueError(
            f"rank {differing[0]} would see different batches from rank 0: pass the same data on all ranks, and seed "
            "the generators of their training loaders identically"
        )
