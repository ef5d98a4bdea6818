"""Checkpoints: weights, and the states of optimisers and other parts that a run resumes from.

A file is written under another name and renamed, and read with ``weights_only=True``, so that it
cannot run code.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probattn import ProbabilisticAttention
from probattn.inference.io.files import (
    read_archive,
    undamaged,
    write_archive,
)

FORMAT = "probattn-1"


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
    with undamaged(path, CheckpointError):
        content = read_archive(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"it is no checkpoint of probattn, of format {FORMAT}")
        check_structure(content)
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
    with undamaged(path, CheckpointError):  # such as a module's extra state
        for role, module in modules.items():
            separate_entries(module)
            module.load_state_dict(content[role])


def separate_entries(module: nn.Module) -> None:
    """Give entries of expanded tensors memory of their own: nothing can be copied into what they
    share, and fused optimisers would train them as one."""
    for tensor in (*module.parameters(), *module.buffers()):
        if 0 in tensor.stride():
            tensor.data = tensor.data.contiguous()


def _structure(content: Mapping[str, Any], roles: Iterable[str]) -> dict[str, Any]:
    """Return the settings of layers and the shapes of weights by name; a module's extra state has
    any shape, and weights of earlier versions lack the marks of placed inducing inputs."""
    structure = {f"layer {name}:": settings for name, settings in content["layers"].items()}
    for role in roles:
        for name, value in content[role].items():
            if name.rpartition(".")[-1] == "is_placed":
                continue
            structure[f"{role}: {name}"] = (
                None if name.endswith("_extra_state") else tuple(value.shape)
            )
    return structure


def check_structure(content: Mapping[str, Any]) -> None:
    """Check the types of what :func:`save` writes; raise an error of any type."""
    for part in ("model", "guide", "layers", "extra"):
        dict(**content[part])  # fails for what is no dictionary by name
    for name, value in (content["model"] | content["guide"]).items():
        is_weight = (
            isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized
        )
        if not name.endswith("_extra_state") and not is_weight:
            raise ValueError(f"{name} is no plain tensor")


def part_states(parts: Iterable[Any]) -> list[list]:
    """Return the class and state of optimisers, schedulers or callbacks."""
    return [[type(owner).__name__, owner.state_dict()] for owner in parts]


def load_part_states(parts: Iterable[Any], states: list[list]) -> None:
    """Restore the states that :func:`part_states` returned.

    Raises:
        CheckpointError: parts of other classes.
        ValueError: another number of parts, or states of another structure.
    """
    for owner, (name, state) in zip(parts, states, strict=True):
        if type(owner).__name__ != name:
            raise CheckpointError(f"the run had {name}, and now has {type(owner).__name__}")
        _check_kind(state, owner.state_dict())
        owner.load_state_dict(state)
        if isinstance(owner, torch.optim.Adam):
            for weight, values in owner.state.items():
                # The step, and averages in the weight's shape.
                sizes = {value.numel() for value in values.values()}
                if not sizes <= {1, weight.numel()}:
                    raise ValueError(f"{name} has values of another shape")


def _check_kind(value: Any, like: Any) -> None:
    """Raise ValueError unless a value has the type of another, of which ints and floats are one, at
    any depth."""
    for kind in (int | float, str, dict, list | tuple):
        if isinstance(like, kind) and not isinstance(value, kind):
            raise ValueError(f"{value!r:.99} is in the place of {like!r:.99}")
    if isinstance(like, dict):
        for name in like.keys() & value.keys():
            _check_kind(value[name], like[name])
    elif isinstance(like, list | tuple):
        for pair in zip(value, like, strict=False):
            _check_kind(*pair)
