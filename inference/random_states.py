"""States of random number generators: the global ones of a process, and those of loaders."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


def torch_states() -> tuple[Tensor, Tensor | None]:
    """Return the states of PyTorch's generators of the CPU and of the present GPU, None without
    one."""
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return torch.get_rng_state(), gpu


def set_torch_states(states: tuple[Tensor, Tensor | None]) -> None:
    """Set the states that :func:`torch_states` returned; that of a GPU where there is one."""
    cpu, gpu = states
    torch.set_rng_state(cpu)
    if gpu is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(gpu)


def random_states(*loaders: Any) -> dict[str, Any]:
    """Return the states of the global random number generators of this process, and of loaders.

    Of a loader, these are its own generators and those of its samplers and its data set: attributes
    that are generators of PyTorch, NumPy or Python.
    """
    return {
        "torch": torch_states(),
        "python": random.getstate(),
        "numpy": _plain(np.random.get_state(legacy=False)),
        "generators": [_state(generator) for generator in _generators(loaders)],
    }


def set_random_states(states: Mapping[str, Any], *loaders: Any) -> None:
    """Set the states that :func:`random_states` returned.

    Raises:
        ValueError: loaders with another number of generators than those of the states.
    """
    set_torch_states(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    for generator, state in zip(_generators(loaders), states["generators"], strict=True):
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)


@contextmanager
def kept(loader: Any) -> Iterator[None]:
    """Leave all :func:`random_states` as they are by what runs inside."""
    states = random_states(loader)
    yield
    set_random_states(states, loader)


def first_of(loader: Iterable) -> Any:
    """Return the first batch of a loader, with all :func:`random_states` kept."""
    with kept(loader):
        return next(iter(loader))


def _state(generator: Generator) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    return generator.get_state()


def _plain(state: Any) -> Any:
    """Return a state of NumPy's with lists in place of arrays, which ``weights_only`` reads."""
    return json.loads(json.dumps(state, default=np.ndarray.tolist))


def _generators(loaders: Iterable[Any]) -> list[Generator]:
    """Return the generators that loaders, their samplers and data sets have as attributes, each
    once."""
    generators: dict[int, Generator] = {}
    for loader in loaders:
        batches = getattr(loader, "batch_sampler", None)
        owners = [loader, batches, getattr(batches, "sampler", None)]
        owners += [getattr(loader, name, None) for name in ("sampler", "dataset")]
        for owner in owners:
            for value in getattr(owner, "__dict__", {}).values():
                if isinstance(value, Generator):
                    generators[id(value)] = value
    return list(generators.values())
