"""Checkpoints: written atomically, read without unpickling, and checked completely before a weight changes."""

import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probattn.attention.base import ProbabilisticAttention
from probattn.inference.io.atomic_write import atomic_write

FORMAT = "probattn-1"
PARTS = {"model", "guide", "layers", "extra"}


class CheckpointError(RuntimeError):
    """A checkpoint that is missing, damaged, or of another architecture."""


def save(path: str | Path, model: nn.Module, guide: nn.Module | None = None, **extra: Any) -> None:
    """Save the weights of a model and its guide, and extra values, to one file.

    A crash leaves the old file or the new one, never half of one.

    Args:
        path: the file; its folder must exist.
        model, guide: modules whose state is saved.
        extra: tensors, numbers, strings, and dicts and lists of them.

    Raises:
        OSError: it cannot be written; names the path.
        TypeError: ``extra`` holds something else, or a function was passed instead of a module.
    """
    _check_modules(model, guide)
    try:
        write(path, weights_content(model, guide) | {"extra": extra})
    except CheckpointError as error:
        raise TypeError(f"extra may hold only tensors, numbers, strings, dicts and lists, got {extra}") from error


def weights_content(model: nn.Module, guide: nn.Module | None = None) -> dict[str, Any]:
    """Return the content of a file of weights: ``format``, ``model``, ``guide`` and ``layers``."""
    return {
        "format": FORMAT,
        "model": model.state_dict(),
        "guide": {} if guide is None else guide.state_dict(),
        "layers": _layer_signatures(model),
    }


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Write tensors, numbers, strings, and dicts and lists of them atomically, after reading them back.

    Raises:
        CheckpointError: content of other types, which :func:`read` would refuse.
        OSError: it cannot be written; names the path.
    """
    with atomic_write(path, tag="part") as draft:
        with draft.open("wb") as file:
            torch.save(content, file)
        read(draft, expected=content["format"])


def load(path: str | Path, model: nn.Module, guide: nn.Module | None = None) -> dict[str, Any]:
    """Load a checkpoint into a model and its guide, all or nothing.

    Args:
        path: the file.
        model, guide: modules of the architecture that was saved; AutoGuides must be materialised first.

    Returns:
        The extra values that were saved.

    Raises:
        CheckpointError: missing, damaged, or of another architecture, naming the first differences.
    """
    _check_modules(model, guide)
    content = read(path)
    restore(content, model, guide, path=path)
    return content["extra"]


def _check_modules(*parts: nn.Module | None) -> None:
    for part in parts:
        if part is not None and not isinstance(part, nn.Module):
            raise TypeError(
                f"{getattr(part, '__name__', part)} is a function, whose parameters are in Pyro's store: use "
                "pyro.get_param_store().save(path) and .load(path) for them"
            )


def restore(content: dict[str, Any], model: nn.Module, guide: nn.Module | None = None, *, path: str | Path) -> None:
    """Load the content that :func:`read` returned into a model and its guide, all or nothing.

    Raises:
        CheckpointError: of another architecture, naming the first differences.
    """
    check_architecture(content, model, guide, path=path)
    for part, module in _targets(model, guide).items():
        module.load_state_dict(content[part])


def check_architecture(
    content: dict[str, Any], model: nn.Module, guide: nn.Module | None = None, *, path: str | Path
) -> None:
    """Check that the content that :func:`read` returned fits a model and its guide; nothing is changed.

    Raises:
        CheckpointError: of another architecture, naming the first differences.
    """
    layers = _layer_signatures(model)
    differences = [
        f"layer {name or '(the model)'}: {saved} in the checkpoint, {layers.get(name)} here"
        for name, saved in content["layers"].items()
        if layers.get(name) != saved
    ]
    differences += [
        line for part, module in _targets(model, guide).items() for line in _differences(part, module, content[part])
    ]
    if differences:
        first = "\n  ".join(differences[:8]) + ("\n  …" if len(differences) > 8 else "")
        raise CheckpointError(f"{path} is of another architecture; build the model with its settings:\n  {first}")


def _targets(model: nn.Module, guide: nn.Module | None) -> dict[str, nn.Module]:
    return {"model": model} if guide is None else {"model": model, "guide": guide}


def read(path: str | Path, *, expected: str = FORMAT) -> dict[str, Any]:
    """Return the content of a checkpoint on the CPU: ``model``, ``guide``, ``layers`` and ``extra``.

    Args:
        path: the file.
        expected: format of the file; other formats of this library have other content.

    Raises:
        CheckpointError: missing, damaged, or not a checkpoint of this library.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.save compresses nothing, and torch.load checks no checksums
            if any(member.compress_type for member in archive.infolist()) or archive.testzip() is not None:
                raise zipfile.BadZipFile
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} is damaged or half-written ({type(error).__name__}); use another") from error
    if not isinstance(content, dict) or content.get("format") != expected:
        raise CheckpointError(f"{path} is not a probattn checkpoint of format {expected}")
    if expected == FORMAT and not content.keys() >= PARTS:
        raise CheckpointError(f"{path} lacks {', '.join(sorted(PARTS - content.keys()))}; use another")
    return content


def _layer_signatures(model: nn.Module) -> dict[str, dict[str, int | str]]:
    """Return the settings of attention layers that the shapes of parameters do not determine, such as the heads."""
    return {
        name: layer.signature() for name, layer in model.named_modules() if isinstance(layer, ProbabilisticAttention)
    }


def _differences(part: str, module: nn.Module, saved: dict[str, torch.Tensor]) -> list[str]:
    own = module.state_dict()
    lines = [f"{part}: {name} is missing in the checkpoint" for name in own if name not in saved]
    lines += [f"{part}: {name} is in the checkpoint only" for name in saved if name not in own]
    return lines + [
        f"{part}: {name} has shape {tuple(own[name].shape)}, the checkpoint {tuple(saved[name].shape)}"
        for name in own
        if name in saved and own[name].shape != saved[name].shape
    ]
