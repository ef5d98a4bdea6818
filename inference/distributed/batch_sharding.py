"""Sharding of training batches over the ranks of torchrun."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor
from torch.utils.data import DistributedSampler

from probattn.inference.distributed import random_state
from probattn.inference.distributed.collectives import gather_results, world


class Part(NamedTuple):
    """One rank's part of a batch.

    Args:
        batch: its rows of each tensor.
        share: what its loss counts.
        whole: number of examples of the whole batch.
    """

    batch: tuple[Tensor, ...]
    share: float
    whole: int


class Shard:
    """One rank's rows of each batch of a loader, with their share: every ``world``-th row from its rank on.

    The ELBO of a batch is the mean of those of its parts, weighted by their sizes: likelihood, penalties and KL. DDP
    averages over ranks without weights, so each multiplies its loss by its share, ``world · own / whole``. Then the KL
    counts once, and the objective is that of the whole batch, whatever the number of ranks.

    A rank without a row gets the first one with a share of 0.

    Args:
        loader: sized; gives the same batches, tuples of tensors, to all ranks.
        rank, world: which rank of how many.
    """

    def __init__(self, loader: Iterable, *, rank: int, world: int) -> None:
        self.loader, self.rank, self.world = loader, rank, world

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Part]:
        """Yields this rank's part of each batch."""
        for batch in self.loader:
            whole = len(batch[0])
            own = len(range(self.rank, whole, self.world))
            rows = slice(self.rank, None, self.world) if own else slice(0, 1)
            yield Part(tuple(each[rows].contiguous() for each in batch), self.world * own / whole, whole)


def shard(loader: Iterable) -> Shard:
    """This rank's rows of each batch of a loader (all of them without torchrun).

    Raises:
        ValueError: a loader that would not give the same batches to all ranks, with what to build it with.
    """
    rank, size = world()
    if size > 1:
        _check_order(loader)
    return Shard(loader, rank=rank, world=size)


def _check_order(loader: Iterable) -> None:
    """Refuses loaders whose batches would differ between ranks."""
    batched = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batched, getattr(batched, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            raise ValueError(
                "a DistributedSampler shares out the examples a second time: every rank takes its rows of each batch, "
                "so give all ranks the same loader, DataLoader(…, shuffle=True, generator=torch.Generator())"
            )
        if getattr(sampler, "generator", True) is None:
            raise ValueError(
                f"the training loader's {type(sampler).__name__} has no generator, so that each rank would see other "
                "batches: DataLoader(…, generator=torch.Generator().manual_seed(seed))"
            )
    generator = random_state.capture(loader)["loader"]
    seen = gather_results(lambda: (len(loader), None if generator is None else generator.tolist()))
    differing = [number for number, each in enumerate(seen) if each != seen[0]]
    if differing:
        raise ValueError(
            f"rank {differing[0]} would see other batches than rank 0: give all ranks the same data, and seed their "
            "training loaders' generators alike"
        )
