"""Several processes under torchrun, by Lightning Fabric: ranks, collective calls, random states, rows of batches."""

from __future__ import annotations

import io
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils.data import DistributedSampler

from probattn.inference.batches import unpack_batch
from probattn.inference.imports import without_side_effects
from probattn.inference.io.checkpoint import random_states

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")

TIMEOUT = timedelta(days=1)
"""Maximum time that a rank waits for the others, which may be downloading or evaluating; if one dies, the job ends."""


class PeerError(RuntimeError):
    """Error of another rank, which that rank raises itself."""


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
    """Create a Fabric with one device per process; under torchrun with DDP (NCCL on GPUs, gloo on CPUs), connected.

    Args:
        accelerator: as for Fabric.
        devices: as for Fabric, if they amount to one device; 1 under torchrun, which starts a process per device.

    Raises:
        ValueError: several devices in one process, or devices that the accelerator does not have.
    """
    with without_side_effects():  # imported late: it takes as long as PyTorch itself
        from lightning_fabric import Fabric
        from lightning_fabric.strategies import DDPStrategy

    size = world().size
    if size > 1 and devices not in (1, "1", "auto"):
        raise ValueError(f"torchrun starts one process per device: devices={devices!r} must be 1")
    if size > 1:  # a step need not use all parameters, as networks of others may not
        local, strategy = int(os.environ["LOCAL_WORLD_SIZE"]), DDPStrategy(timeout=TIMEOUT, find_unused_parameters=True)
        fabric = Fabric(accelerator=accelerator, devices=local, num_nodes=size // local, strategy=strategy)
        fabric.launch()
        return fabric
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices)
    except Exception as error:  # Fabric raises errors of several types
        raise ValueError(f"accelerator={accelerator!r} with devices={devices!r}: {error}") from error
    if fabric.world_size != 1:
        count = fabric.world_size
        raise ValueError(f"devices={devices!r} are {count} devices: start torchrun --nproc-per-node={count}, devices=1")
    return fabric


def gather_results(function: Callable[[], T]) -> list[T]:
    """Call a function on each rank and return the results of all ranks in order; without torchrun the only one.

    Tensors on a GPU are moved to this rank's GPU. All ranks must call this, after :func:`make_fabric`.

    Raises:
        PeerError: the function failed on another rank; if it failed on this rank, its own error is raised.
    """
    if world().size == 1:
        return [function()]
    buffer, failure = io.BytesIO(), None
    try:
        torch.save(function(), buffer)
    except Exception as error:
        failure = error
    message = None if failure is None else "".join(traceback.format_exception_only(failure)).strip()
    gathered: list[Any] = [None] * world().size
    dist.all_gather_object(gathered, (message, buffer.getvalue()))
    if failure is not None:
        raise failure
    for rank, (message, _) in enumerate(gathered):
        if message is not None:
            raise PeerError(f"rank {rank} failed: {message}")
    return [torch.load(io.BytesIO(each), map_location=_to_own_device, weights_only=False) for _, each in gathered]


def broadcast_result(function: Callable[[], T]) -> T:
    """Call a function on rank 0 only and return its result on all ranks, which wait for it.

    Raises:
        PeerError: the function failed, on all ranks but the first, which raises its own error.
    """
    return gather_results(function if world().rank == 0 else lambda: None)[0]


def rank_zero_first(function: Callable[[], T]) -> T:
    """Call a function on rank 0 and then on the other ranks, which find what it has downloaded.

    Raises:
        PeerError: the function failed on rank 0, on all other ranks.
    """
    results: list[T] = []
    broadcast_result(lambda: results.append(function()))
    return results[0] if results else function()


def average_over_ranks(values: dict[str, float]) -> dict[str, float]:
    """Return the means over ranks of numbers that have the same names on all."""
    gathered = gather_results(lambda: values)
    return {name: sum(each[name] for each in gathered) / len(gathered) for name in values}


def seed_per_rank() -> None:
    """Seed each rank but the first differently, from a random state that all ranks share."""
    rank = world().rank
    if rank > 0:
        torch.manual_seed(int(torch.randint(2**62, ())) + rank)


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

    The ELBO of a batch is the mean of the ELBOs of its parts weighted by their sizes. DDP averages over ranks without
    weights, so the loss is multiplied by ``size · rows / batch_size``: the objective is that of the whole batch. A rank
    without a row gets the first one with a weight of 0.
    """
    rank, size = world()
    for batch in (unpack_batch(each).arguments() for each in loader):
        examples = len(batch[0])
        rows = len(range(rank, examples, size))
        index = slice(rank, None, size) if rows else slice(0, 1)
        yield RankBatch(tuple(each[index].contiguous() for each in batch), size * rows / examples, examples)


def check_same_batches(loader: Iterable) -> None:
    """Refuse a loader whose batches would differ between ranks.

    Raises:
        ValueError: says how to build it.
    """
    if world().size == 1:
        return
    batches = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        if isinstance(sampler, DistributedSampler) or getattr(sampler, "generator", True) is None:
            raise ValueError(
                f"each rank takes its rows of each batch, so all need the same, without {type(sampler).__name__}: "
                "DataLoader(…, shuffle=True, generator=torch.Generator().manual_seed(seed))"
            )
    states = random_states(loader)["generators"]
    bits = [state.tolist() if isinstance(state, Tensor) else state for state in states]
    if len(set(gather_results(lambda: repr((len(loader), bits))))) > 1:
        raise ValueError("ranks would see different batches: pass the same data and generators of the same seed to all")


def _to_own_device(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
    """Move a storage of a GPU to this rank's GPU."""
    device = location if location == "cpu" else f"cuda:{torch.cuda.current_device()}"
    return torch.serialization.default_restore_location(storage, device)
