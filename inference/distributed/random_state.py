"""States of random number generators and of stateful loaders: of this process and, under torchrun, of all ranks."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from probattn.inference.distributed.collectives import gather_results, world
from probattn.inference.distributed.loader_parts import find_parts
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.digest import digest

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


def capture(loader: Any, *, since: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the states of the random number generators of this process and of the stateful parts of a loader.

    These are the global generators of PyTorch (of the CPU and of this process's GPU), Python and NumPy; all generators
    that the loader refers to (see :func:`~probattn.inference.distributed.loader_parts.find_parts`); and what
    ``state_dict()`` returns of the loader, its samplers and its data set where they have that method and
    ``load_state_dict``.

    Args:
        loader: the loader, or a mapping of loaders by name.
        since: an earlier result. Python's and NumPy's global states are None if they have not changed since then: a run
            that does not use them leaves equal checkpoints in each process.
    """
    parts = find_parts(loader)
    states = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": _to_tensors(np.random.get_state(legacy=False)),
        "generators": {path: _get_state(each) for path, each in generators(parts).items()},
        "stateful": {path: each.state_dict() for path, each in stateful(parts).items()},
    }
    unused = [name for name in ("python", "numpy") if since and digest(since[name]) == digest(states[name])]
    return states | dict.fromkeys(unused)


def restore(states: dict[str, Any], loader: Any) -> None:
    """Set the states that :func:`capture` returned.

    Raises:
        CheckpointError: the loader has other generators or stateful parts than the captured one; names them.
    """
    parts = find_parts(loader)
    targets = {"generators": generators(parts), "stateful": stateful(parts)}
    differing = sorted({path for kind, found in targets.items() for path in found.keys() ^ states[kind].keys()})
    if differing:
        raise CheckpointError(
            "cannot resume exactly: the loader has other random number generators or stateful parts than the one of "
            f"the checkpoint ({', '.join(path or 'itself' for path in differing)}); build it as in the first run"
        )
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if states["python"] is not None:
        random.setstate(states["python"])
    if states["numpy"] is not None:
        np.random.set_state(_to_arrays(states["numpy"]))
    for path, generator in targets["generators"].items():
        _set_state(generator, states["generators"][path])
    for path, part in targets["stateful"].items():
        part.load_state_dict(states["stateful"][path])


@contextmanager
def preserved(loader: Any) -> Iterator[None]:
    """Context manager that restores the random states of this process and of a loader on exit."""
    states = capture(loader)
    try:
        yield
    finally:
        restore(states, loader)


def seed_all(loader: Any, seed: int) -> None:
    """Seed PyTorch's, Python's and NumPy's global generators and those of a loader."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    for generator in generators(find_parts(loader)).values():
        _seed(generator, seed)


def generators(parts: dict[str, Any]) -> dict[str, Generator]:
    """Return the random number generators among the parts of a loader that have a state."""
    found = {path: part for path, part in parts.items() if isinstance(part, Generator)}
    return {path: part for path, part in found.items() if not isinstance(part, random.SystemRandom)}


def stateful(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a loader with ``state_dict`` and ``load_state_dict``, except modules."""
    return {
        path: part
        for path, part in parts.items()
        if callable(getattr(part, "state_dict", None))
        and callable(getattr(part, "load_state_dict", None))
        and not isinstance(part, nn.Module)
    }


def capture_all_ranks(loader: Any, *, since: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the random states of all ranks in order (see :func:`capture`)."""
    return gather_results(lambda: capture(loader, since=since))


def restore_own_rank(states: list[dict[str, Any]] | dict[str, Any], loader: Any) -> None:
    """Set the random states of this rank.

    A run may continue with another number of ranks. It then sees the same batches in the same order, but draws other
    samples than it would have drawn without the interruption.

    Args:
        states: from :func:`capture_all_ranks`, or a single state from :func:`capture`.
        loader: the loader, or a mapping of loaders by name.
    """
    states = [states] if isinstance(states, dict) else states
    rank, size = world()
    if len(states) == size:
        restore(states[rank], loader)
    else:
        restore(states[0] | {"cuda": None}, loader)
        torch.manual_seed(int(torch.randint(2**62, ())))
        seed_per_rank()


def seed_per_rank() -> None:
    """Seed each rank but the first differently, from a random state that all ranks share."""
    rank = world().rank
    if rank > 0:
        torch.manual_seed(int(torch.randint(2**62, ())) + rank)


def _get_state(generator: Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return _to_tensors(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _to_tensors(generator.get_state(legacy=False))
    return generator.getstate()


def _set_state(generator: Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _to_arrays(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_to_arrays(state))
    else:
        generator.setstate(state)


def _seed(generator: Generator, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed)


def _to_tensors(state: Any) -> Any:
    """Return a state of NumPy's with tensors instead of arrays, which a checkpoint may hold."""
    if isinstance(state, dict):
        return {name: _to_tensors(value) for name, value in state.items()}
    return torch.from_numpy(state.copy()) if isinstance(state, np.ndarray) else state


def _to_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _to_arrays(value) for name, value in state.items()}
    return state.numpy() if isinstance(state, torch.Tensor) else state
