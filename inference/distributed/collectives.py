"""Several processes as one: started by torchrun, joined by Fabric, and an error on one is told to all."""

import functools
import io
import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

T = TypeVar("T")

TIMEOUT = timedelta(days=1)
"""How long a rank waits for the others, which may be at a download or a long evaluation; those that die end the job."""
GRACE = 30.0
"""Seconds in which torchrun ends the ranks that have lost another."""


class PeerError(RuntimeError):
    """The error of another rank, which that rank raises itself."""


class World(NamedTuple):
    """This process's rank and the number of processes, (0, 1) without torchrun."""

    rank: int
    size: int


def world() -> World:
    """Rank and size, as torchrun tells them."""
    if not dist.is_torchelastic_launched():
        return World(0, 1)
    return World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def make_fabric(accelerator: str, devices: int | str) -> Fabric:
    """Fabric on one device a process: under torchrun with DDP (NCCL on GPUs, gloo on CPUs) and connected.

    DDP averages gradients over ranks. A step need not use all parameters, as networks of others do not.

    Args:
        accelerator: as for Fabric.
        devices: as for Fabric, where they come to one device; under torchrun, which has a process for each, 1.

    Raises:
        ValueError: several devices in one process.
    """
    size = world().size
    if size == 1:
        fabric = Fabric(accelerator=accelerator, devices=devices)
        if fabric.world_size != 1:
            raise ValueError(
                f"devices={devices!r} come to {fabric.world_size}, and a process trains on one: start them by "
                f"torchrun --nproc-per-node={fabric.world_size} -m probattn.experiments …, with devices=1"
            )
        return fabric
    if devices not in (1, "1", "auto"):
        raise ValueError(
            f"torchrun starts a process for each device, and devices={devices!r} are asked of each: leave devices=1, "
            "and choose GPUs by CUDA_VISIBLE_DEVICES"
        )
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    strategy = DDPStrategy(timeout=TIMEOUT, find_unused_parameters=True)
    fabric = Fabric(accelerator=accelerator, devices=local, num_nodes=size // local, strategy=strategy)
    fabric.launch()
    return fabric


def gather_results(function: Callable[[], T]) -> list[T]:
    """What a function gives on each rank, in their order, on all of them; without torchrun on this one.

    Tensors of a GPU come to this rank's. All ranks must call it, and connect by :func:`make_fabric` before.

    Raises:
        PeerError: where the function failed on another rank; its own error where it failed here.
    """
    rank, size = world()
    if size == 1:
        return [function()]
    own, failure = io.BytesIO(), None
    try:
        torch.save(function(), own)
    except Exception as error:
        failure = error
    told = None if failure is None else "".join(traceback.format_exception_only(failure)).strip()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, (told, own.getvalue()))
    if failure is not None:
        raise failure
    for number, (message, _) in enumerate(gathered):
        if message is not None:
            raise PeerError(f"rank {number} failed: {message}")
    return [torch.load(io.BytesIO(each), map_location=_here, weights_only=False) for _, each in gathered]


def broadcast_result(function: Callable[[], T]) -> T:
    """What a function gives on rank 0, which alone runs it, on all ranks; none goes on before it has run.

    Raises:
        PeerError: where it failed, on all ranks but the first, which has its own error.
    """
    return gather_results(function if world().rank == 0 else lambda: None)[0]


def rank_zero_first(function: Callable[[], T]) -> T:
    """What a function gives on each rank; the first runs it before the others, which find what it downloads.

    Raises:
        PeerError: where it failed on the first rank, on all others.
    """
    given: list[T] = []
    broadcast_result(lambda: given.append(function()))
    return given[0] if given else function()


def averaged(values: dict[str, float]) -> dict[str, float]:
    """The means over ranks of numbers that have the same names on all."""
    gathered = gather_results(lambda: values)
    return {name: sum(each[name] for each in gathered) / len(gathered) for name in values}


def reporting(program: Callable[..., T]) -> Callable[..., T]:
    """The program, of whose errors torchrun reports the first; without torchrun the program itself.

    Where a rank ends, the others fail for want of it, often before torchrun has seen why. They wait to be ended, so
    that they do not pass for the cause.
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


def _here(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
    """Puts a storage on the device of its kind that is this rank's."""
    place = location if location == "cpu" else f"cuda:{torch.cuda.current_device()}"
    return torch.serialization.default_restore_location(storage, place)
