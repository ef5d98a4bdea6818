"""Checkpoints: weights, and the states of optimisers and random number generators that a run
resumes from.

A file is written under another name and renamed, and read with ``weights_only=True``, so that it
cannot run code.
"""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.inference.io.files import read_archive, write_archive

FORMAT = "probattn-1"
Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


class CheckpointError(RuntimeError):
    """A checkpoint that is missing, damaged, or of another architecture or run."""


def save(path: str | Path, model: nn.Module, guide: nn.Module | None = None, **extra: Any) -> None:
    """Save the weights of a model and its guide, and extra values, to one file, whole or not at
    all.

    Args:
        path: the file; its folder must exist.
        model, guide: modules whose state is saved.
        extra: tensors, numbers, strings, and dicts and lists of them.

    Raises:
        pickle.UnpicklingError: values of other types, which :func:`load` could not read.
    """
    write_archive(path, weights(model, guide) | {"extra": extra}, tag="part")


def load(path: str | Path, model: nn.Module, guide: nn.Module | None = None) -> dict[str, Any]:
    """Load a checkpoint into a model and its guide, all or nothing, and return the extra values.

    Args:
        path: the file.
        model, guide: modules of the architecture that was saved; AutoGuides must be materialised
            first.

    Raises:
        CheckpointError: missing, damaged, or of another architecture, naming the first differences.
    """
    content = read(path)
    restore(content, model, guide, path=path)
    return content["extra"]


def weights(model: nn.Module, guide: nn.Module | None = None) -> dict[str, Any]:
    """Return ``format``, ``model`` and ``guide`` (their states), and ``layers``.

    ``layers`` has the settings of attention layers that the shapes of parameters do not show, such
    as the heads.
    """
    modules = model.named_modules()
    return {
        "format": FORMAT,
        "model": model.state_dict(),
        "guide": {} if guide is None else guide.state_dict(),
        "layers": {
            name: layer.signature()
            for name, layer in modules
            if isinstance(layer, ProbabilisticAttention)
        },
    }


def read(path: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint on the CPU: ``model``, ``guide``, ``layers`` and
    ``extra``.

    Raises:
        CheckpointError: missing, damaged, or not a checkpoint of this library.
    """
    try:
        content = read_archive(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        check_structure(content)
    except Exception as error:  # of many types
        raise CheckpointError(
            f"{path} is damaged, missing, or no checkpoint of probattn ({error})"
        ) from error
    return content


def restore(
    content: Mapping[str, Any],
    model: nn.Module,
    guide: nn.Module | None = None,
    *,
    path: str | Path,
) -> None:
    """Load the content that :func:`read` returned into a model and its guide, all or nothing.

    Raises:
        CheckpointError: of another architecture, or for a guide without parameters yet; names the
            first differences.
    """
    modules = {"model": model} if guide is None else {"model": model, "guide": guide}
    before = _structure(content, modules)
    here = _structure(weights(model, guide), modules)
    differences = [
        f"{name} {before.get(name, 'missing')}, here {here.get(name, 'missing')}"
        for name in before | here
        if before.get(name) != here.get(name)
    ]
    if differences:
        first = "\n  ".join(differences[:8])
        raise CheckpointError(
            f"{path} is of another architecture; build the model with its settings:\n  {first}"
        )
    try:
        for role, module in modules.items():
            for tensor in (*module.parameters(), *module.buffers()):
                if (
                    0 in tensor.stride()
                ):  # expanded: its entries share memory, into which nothing can be copied
                    tensor.data = tensor.data.clone()
            module.load_state_dict(content[role])
    except Exception as error:  # of many types: a module's extra state
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error


def _structure(content: Mapping[str, Any], roles: Iterable[str]) -> dict[str, Any]:
    """Return the settings of layers and the shapes of weights by name; a module's extra state has
    any shape."""
    structure = {f"layer {name}:": settings for name, settings in content["layers"].items()}
    for role in roles:
        for name, value in content[role].items():
            structure[f"{role}: {name}"] = (
                None if name.endswith("_extra_state") else tuple(value.shape)
            )
    return structure


def check_structure(content: Mapping[str, Any]) -> None:
    """Check the types of what :func:`save` writes; raise KeyError or ValueError."""
    for part in ("model", "guide", "layers", "extra"):
        if not isinstance(content[part], dict) or not all(
            isinstance(name, str) for name in content[part]
        ):
            raise ValueError(f"its {part} is no dictionary by name")
    for name, value in (content["model"] | content["guide"]).items():
        is_weight = (
            isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized
        )
        if not name.endswith("_extra_state") and not is_weight:
            raise ValueError(f"{name} is no plain tensor")


def part_states(parts: Iterable[Any]) -> list[list]:
    """Return the class and state of optimisers, schedulers or callbacks."""
    return [
        [type(owner).__name__, owner.state_dict() if hasattr(owner, "state_dict") else None]
        for owner in parts
    ]


def load_part_states(parts: Iterable[Any], states: list[list]) -> None:
    """Restore the states that :func:`part_states` returned.

    Raises:
        CheckpointError: parts of other classes.
        ValueError: another number of parts, or states of another structure.
    """
    for owner, (name, state) in zip(parts, states, strict=True):
        if type(owner).__name__ != name:
            raise CheckpointError(f"the run had {name}, and now has {type(owner).__name__}")
        if state is not None:
            _check_kind(state, owner.state_dict())
            owner.load_state_dict(state)
        if isinstance(owner, torch.optim.Adam | torch.optim.AdamW):
            for (
                weight,
                values,
            ) in owner.state.items():  # the step, and averages in the weight's shape
                sizes = {value.numel() for value in values.values()}
                if not sizes <= {1, weight.numel()}:
                    raise ValueError(f"{name} has values of another shape")


def _check_kind(value: Any, like: Any) -> None:
    """Raise ValueError unless a value has the type of another, of which ints and floats are one, at
    any depth."""
    kinds: tuple[Any, ...] = (int | float, str, dict, list | tuple)
    kind: Any = next((kind for kind in kinds if isinstance(like, kind)), object)
    if not isinstance(value, kind):
        raise ValueError(f"{value!r:.99} is in the place of {like!r:.99}")
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(like, dict):
        inside = [(value[name], like[name]) for name in like if name in value]
    elif isinstance(like, list | tuple):
        inside = zip(value, like, strict=False)
    for pair in inside:
        _check_kind(*pair)


def random_states(*loaders: Any) -> dict[str, Any]:
    """Return the states of the global random number generators of this process, and of loaders.

    Of a loader, these are its own generators and those of its samplers and its data set: attributes
    that are generators of PyTorch, NumPy or Python.
    """
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": _plain(np.random.get_state(legacy=False)),
        "generators": [_state(generator) for generator in _generators(loaders)],
    }


def set_random_states(states: Mapping[str, Any], *loaders: Any) -> None:
    """Set the states that :func:`random_states` returned.

    Raises:
        ValueError: loaders with another number of generators than those of the states.
    """
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    for generator, state in zip(_generators(loaders), states["generators"], strict=True):
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)


def peek(loader: Iterable) -> Any:
    """Return the first batch of a loader, and leave all :func:`random_states` as they are."""
    states = random_states(loader)
    batch = next(iter(loader))
    set_random_states(states, loader)
    return batch


def _state(generator: Generator) -> Any:
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _plain(state: Any) -> Any:
    """Return a state of NumPy's with lists in place of arrays, which ``weights_only`` reads."""
    return json.loads(json.dumps(state, default=np.ndarray.tolist))


def _generators(loaders: Iterable[Any]) -> list[Generator]:
    """Return the generators that loaders, their samplers and data sets have as attributes, each
    once."""
    generators: dict[int, Generator] = {}
    for loader in loaders:
        batches = getattr(loader, "batch_sampler", None)
        samplers = (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
        for owner in (loader, *samplers, getattr(loader, "dataset", None)):
            values = getattr(owner, "__dict__", {}).values()
            generators |= {id(value): value for value in values if isinstance(value, Generator)}
    return list(generators.values())
