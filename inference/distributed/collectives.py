"""Collective calls between the processes that torchrun has started; an error on one rank is raised on all."""

from __future__ import annotations

import functools
import io
import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from probattn.inference.imports import without_side_effects

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")

TIMEOUT = timedelta(days=1)
"""Maximum time that a rank waits for the others, which may be downloading or evaluating; if one dies, the job ends."""
GRACE = 30.0
"""Seconds within which torchrun ends the ranks that have lost another."""


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

    DDP averages gradients over ranks. A step need not use all parameters, as third-party networks may not.

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
    if size == 1:
        try:
            fabric = Fabric(accelerator=accelerator, devices=devices)
        except Exception as error:  # Fabric raises errors of several types
            raise ValueError(f"accelerator={accelerator!r} with devices={devices!r}: {error}") from error
        if fabric.world_size != 1:
            raise ValueError(
                f"devices={devices!r} are {fabric.world_size} devices, and a process trains on one: start them with "
                f"torchrun --nproc-per-node={fabric.world_size} -m probattn.experiments …, with devices=1"
            )
        return fabric
    if devices not in (1, "1", "auto"):
        raise ValueError(
            f"torchrun starts one process per device, and devices={devices!r} apply to each process: leave devices=1, "
            "and select GPUs with CUDA_VISIBLE_DEVICES"
        )
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    strategy = DDPStrategy(timeout=TIMEOUT, find_unused_parameters=True)
    fabric = Fabric(accelerator=accelerator, devices=local, num_nodes=size // local, strategy=strategy)
    fabric.launch()
    return fabric


def gather_results(function: Callable[[], T]) -> list[T]:
    """Call a function on each rank and return the results of all ranks in order; without torchrun the only one.

    Tensors on a GPU are moved to this rank's GPU. All ranks must call this, after :func:`make_fabric`.

    Raises:
        PeerError: the function failed on another rank; if it failed on this rank, its own error is raised.
    """
    rank, size = world()
    if size == 1:
        return [function()]
    buffer, failure = io.BytesIO(), None
    try:
        torch.save(function(), buffer)
    except Exception as error:
        failure = error
    message = None if failure is None else "".join(traceback.format_exception_only(failure)).strip()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, (message, buffer.getvalue()))
    if failure is not None:
        raise failure
    for number, (message, _) in enumerate(gathered):
        if message is not None:
            raise PeerError(f"rank {number} failed: {message}")
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


def report_first_error(program: Callable[..., T]) -> Callable[..., T]:
    """Wrap a program so that torchrun reports the rank whose error came first; without torchrun return it unchanged.

    When a rank ends, the others fail because they lose it, often before torchrun has noticed the cause. They wait to be
    ended, so that their errors are not reported as the cause.
    """
    if not dist.is_torchelastic_launched():
        return program

    @record
    @functools.wraps(program)
    def run(*args: Any, **kwargs: Any) -> T:
        try:
            return program(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(error, (PeerError, dist.DistError)) or "/gloo/" in str(error):
                time.sleep(GRACE)
            raise

    return run


def _to_own_device(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
    """Move a storage of a GPU to this rank's GPU."""
    own = location if location == "cpu" else f"cuda:{torch.cuda.current_device()}"
    return torch.serialization.default_restore_location(storage, own)
