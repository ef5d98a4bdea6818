"""Checkpoints: weights, and the states of optimisers and random number generators that a run resumes from.

A file is written under another name and renamed, and read with ``weights_only=True``, so that it cannot run code.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.inference import guide_checks
from probattn.inference.io.files import read_archive, write_archive

FORMAT = "probattn-1"
PARTS = ("model", "guide", "layers", "extra")
Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


class CheckpointError(RuntimeError):
    """A checkpoint that is missing, damaged, or of another architecture or run."""


def save(path: str | Path, model: nn.Module, guide: nn.Module | None = None, **extra: Any) -> None:
    """Save the weights of a model and its guide, and extra values, to one file, whole or not at all.

    Args:
        path: the file; its folder must exist.
        model, guide: modules whose state is saved.
        extra: tensors, numbers, strings, and dicts and lists of them.

    Raises:
        TypeError: a function instead of a module; values of other types, which :func:`load` could not read.
        OSError: it cannot be written; names the path.
    """
    write_archive(path, weights(model, guide) | {"extra": extra}, tag="part")


def load(path: str | Path, model: nn.Module, guide: nn.Module | None = None) -> dict[str, Any]:
    """Load a checkpoint into a model and its guide, all or nothing, and return the extra values.

    Args:
        path: the file.
        model, guide: modules of the architecture that was saved; AutoGuides must be materialised first.

    Raises:
        CheckpointError: missing, damaged, or of another architecture, naming the first differences.
    """
    content = read(path)
    restore(content, model, guide, path=path)
    return content["extra"]


def weights(model: nn.Module, guide: nn.Module | None = None) -> dict[str, Any]:
    """Return ``format``, ``model`` and ``guide`` (their states), and ``layers``.

    ``layers`` has the settings of attention layers that the shapes of parameters do not show, such as the heads.
    """
    for module in (model, guide):
        if not isinstance(module, nn.Module | None):
            raise TypeError(f"{module} is a function: its parameters are in Pyro's store, pyro.get_param_store().save")
    named = model.named_modules()
    return {
        "format": FORMAT,
        "model": model.state_dict(),
        "guide": {} if guide is None else guide.state_dict(),
        "layers": {name: layer.signature() for name, layer in named if isinstance(layer, ProbabilisticAttention)},
    }


def read(path: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint on the CPU: ``model``, ``guide``, ``layers`` and ``extra``.

    Raises:
        CheckpointError: missing, damaged, or not a checkpoint of this library.
    """
    try:
        content = read_archive(path)
        if content["format"] != FORMAT or not all(isinstance(content[part], dict) for part in PARTS):
            raise ValueError(f"it is not of format {FORMAT}")
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint {path}") from error
    except Exception as error:  # of many types
        raise CheckpointError(f"{path} is damaged, or no checkpoint of probattn ({error}): use another") from error
    return content


def restore(content: Mapping[str, Any], model: nn.Module, guide: nn.Module | None = None, *, path: str | Path) -> None:
    """Load the content that :func:`read` returned into a model and its guide, all or nothing.

    Raises:
        CheckpointError: of another architecture, naming the first differences; a guide without parameters yet.
    """
    if guide is not None and guide_checks.is_lazy(guide):
        raise CheckpointError(f"{path}: call inference.materialise(guide, (x, y)) first, then load the guide")
    parts = {"model": model} | ({} if guide is None else {"guide": guide})
    here = weights(model, guide)["layers"]
    layers = content["layers"].items()
    differences = [f"layer {name}: {value}, here {here.get(name)}" for name, value in layers if here.get(name) != value]
    for name, module in parts.items():
        before = {key: _shape(key, value) for key, value in content[name].items()}
        now = {key: _shape(key, value) for key, value in module.state_dict().items()}
        both = before | now
        differences += [
            f"{name}: {key} {before.get(key, 'missing')}, here {now.get(key, 'missing')}"
            for key in both
            if before.get(key) != now.get(key)
        ]
    if differences:
        first = "\n  ".join(differences[:8])
        raise CheckpointError(f"{path} is of another architecture; build the model with its settings:\n  {first}")
    for name, module in parts.items():
        module.load_state_dict(content[name])


def _shape(key: str, value: Tensor) -> tuple[int, ...] | None:
    """Return the shape of a tensor; a module's extra state has any."""
    return None if key.endswith("_extra_state") else tuple(value.shape)


def part_states(parts: Iterable[Any]) -> dict[str, Any]:
    """Return the states of optimisers, schedulers or callbacks, by position and class."""
    return {name: part.state_dict() if hasattr(part, "state_dict") else {} for name, part in _by_class(parts).items()}


def load_part_states(parts: Iterable[Any], states: Mapping[str, Any]) -> None:
    """Restore the states that :func:`part_states` returned.

    Raises:
        CheckpointError: parts of other classes.
    """
    named = _by_class(parts)
    if named.keys() != states.keys():
        raise CheckpointError(f"the run had {', '.join(states) or 'none'}, and now has {', '.join(named) or 'none'}")
    for name, part in named.items():
        if hasattr(part, "load_state_dict"):
            part.load_state_dict(states[name])


def _by_class(parts: Iterable[Any]) -> dict[str, Any]:
    return {f"{number} {type(part).__name__}": part for number, part in enumerate(parts)}


def random_states(*loaders: Any) -> dict[str, Any]:
    """Return the states of the global random number generators of this process, and of loaders.

    Of a loader, these are its own generators and those of its samplers and its data set: attributes that are generators
    of PyTorch, NumPy or Python; and the ``state_dict`` of each of these parts that has one.
    """
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": _plain(np.random.get_state(legacy=False)),
        "generators": [_plain(_state(each)) for each in _generators(loaders)],
        "stateful": [part.state_dict() for part in _stateful(loaders)],
    }


def set_random_states(states: Mapping[str, Any], *loaders: Any) -> None:
    """Set the states that :func:`random_states` returned.

    Raises:
        CheckpointError: loaders with other generators than those of the states.
    """
    generators, stateful = _generators(loaders), _stateful(loaders)
    if (len(generators), len(stateful)) != (len(states["generators"]), len(states["stateful"])):
        raise CheckpointError("the loaders have other random number generators than the checkpoint's: build the same")
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    for generator, state in zip(generators, states["generators"], strict=True):
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)
    for part, state in zip(stateful, states["stateful"], strict=True):
        part.load_state_dict(state)


@contextmanager
def preserved(*loaders: Any) -> Iterator[None]:
    """Restore all :func:`random_states` at the end."""
    states = random_states(*loaders)
    try:
        yield
    finally:
        set_random_states(states, *loaders)


def _state(generator: Generator) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, torch.Generator) else generator.get_state(legacy=False)


def _plain(state: Any) -> Any:
    """Return a state of NumPy's with lists in place of arrays, which ``weights_only`` reads."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _parts(loaders: tuple[Any, ...]) -> list[Any]:
    """Return loaders, their samplers and data sets, each once."""
    parts: dict[int, Any] = {}
    for loader in loaders:
        batches = getattr(loader, "batch_sampler", None)
        for part in (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
            parts[id(part)] = part
        data = getattr(loader, "dataset", None)
        parts[id(data)] = data
    return list(parts.values())


def _generators(loaders: tuple[Any, ...]) -> list[Generator]:
    values = (value for part in _parts(loaders) for value in getattr(part, "__dict__", {}).values())
    return list({id(value): value for value in values if isinstance(value, Generator)}.values())


def _stateful(loaders: tuple[Any, ...]) -> list[Any]:
    methods = ("state_dict", "load_state_dict")
    return [each for each in _parts(loaders) if all(hasattr(each, method) for method in methods)]
