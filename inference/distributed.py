"""Several processes under torchrun, by Lightning Fabric: ranks, collective calls, rows of
batches."""

from __future__ import annotations

import atexit
import io
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch import distributed as dist

from probattn.inference.batches import Loader, unpack_batch
from probattn.inference.imports import without_side_effects
from probattn.inference.random_states import kept

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")

TIMEOUT = timedelta(days=1)
"""Maximum time that a rank waits for the others, which may be downloading or evaluating; if one
dies, the job ends."""


class World(NamedTuple):
    """Rank of this process and number of processes; (0, 1) without torchrun."""

    rank: int
    size: int


def world() -> World:
    """Return rank and size from torchrun's environment variables."""
    if not dist.is_torchelastic_launched():
        return World(0, 1)
    return World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def make_fabric(accelerator: str, devices: int | str) -> Fabric:
    """Create a Fabric for one device; under torchrun with DDP (NCCL on GPUs, gloo on CPUs),
    connected.

    Args:
        accelerator: as for Fabric.
        devices: as for Fabric; under torchrun, which starts a process per device, it has no effect.
    """
    with without_side_effects():  # imported late: it takes as long as PyTorch itself
        from lightning_fabric import Fabric
        from lightning_fabric.strategies import DDPStrategy

    size = world().size
    if size == 1:
        try:
            return Fabric(accelerator=accelerator, devices=devices)
        except TypeError as error:
            raise ValueError(f"devices={devices!r}: {error}") from error
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    # A step need not use all parameters, as networks of others may not.
    strategy = DDPStrategy(timeout=TIMEOUT, find_unused_parameters=True)
    fabric = Fabric(
        accelerator=accelerator, devices=local, num_nodes=size // local, strategy=strategy
    )
    fabric.launch()
    # Fabric leaves the group of CPUs to the end of the process, which its threads then abort at
    # times, after a run that went well.
    atexit.register(_leave_group)
    return fabric


def _leave_group() -> None:
    """End the threads of the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def gather_results(function: Callable[[], T]) -> list[T]:
    """Call a function on each rank and return the results of all ranks in order; without torchrun
    the only one.

    Tensors on a GPU are moved to this rank's GPU. All ranks must call this, after
    :func:`make_fabric`. A rank on which the function fails raises its error and ends; torchrun then
    ends the others, which wait for it.
    """
    if world().size == 1:
        return [function()]
    buffer = io.BytesIO()
    torch.save(function(), buffer)
    gathered = [b""] * world().size
    dist.all_gather_object(gathered, buffer.getvalue())
    gpus = {
        f"cuda:{number}": f"cuda:{torch.cuda.current_device()}"
        for number in range(torch.cuda.device_count())
    }
    files = map(io.BytesIO, gathered)
    return [torch.load(file, map_location=gpus, weights_only=False) for file in files]


def broadcast_result(function: Callable[[], T]) -> T:
    """Call a function on rank 0 only and return its result on all ranks, which wait for it."""
    return cast(T, gather_results(function if world().rank == 0 else lambda: None)[0])


def average_over_ranks(values: dict[str, float]) -> dict[str, float]:
    """Return the means over ranks of numbers that have the same names on all."""
    gathered = gather_results(lambda: values)
    means = {}
    for name in values:
        means[name] = sum(of_rank[name] for of_rank in gathered) / len(gathered)
    return means


def seed_per_rank() -> None:
    """Seed each rank but the first differently, from a random state that all ranks share."""
    if world().rank > 0:
        torch.manual_seed(int(torch.randint(2**62, ())) + world().rank)


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


def rank_batches(loader: Iterable) -> Iterator[RankBatch]:
    """Yield this rank's rows of each batch of a loader: every ``size``-th, from ``rank`` on.

    The ELBO of a batch is the mean of the ELBOs of its parts weighted by their sizes. DDP averages
    over ranks without weights, so the loss is multiplied by ``size · rows / batch_size``: the
    objective is that of the whole batch. A rank without a row gets the first one with a weight of
    0.
    """
    rank, size = world()
    for data in loader:
        batch = unpack_batch(data).arguments()
        examples = len(batch[0])
        rows = len(range(rank, examples, size))
        index = slice(rank, None, size) if rows else slice(0, 1)
        tensors = tuple(tensor[index].contiguous() for tensor in batch)
        yield RankBatch(tensors, size * rows / examples, examples)


def check_same_batches(loader: Loader) -> None:
    """Refuse a loader whose first batch would have other examples on another rank.

    Raises:
        ValueError: says how to build it.
    """
    if world().size == 1:
        return
    sampler: Any = getattr(loader, "batch_sampler", None)
    if sampler is None:  # that of a data set without indices has no length, and no truth value
        sampler = getattr(loader, "sampler", ())
    with kept(loader):
        # In training, too, the global random numbers of the ranks differ.
        torch.manual_seed(world().rank)
        first = next(iter(sampler), None)
    seen = gather_results(lambda: repr((len(loader), first)))
    if len(set(seen)) > 1:
        raise ValueError(
            "each rank takes its rows of each batch, so all need the same data and order, without "
            "DistributedSampler: "
            "DataLoader(…, shuffle=True, generator=torch.Generator().manual_seed(seed))"
        )
