"""Checkpoints: written beside and renamed, read without unpickling, checked whole before a weight is touched."""

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
    """Writes weights of a model and its guide, and what else is given, to one file.

    It is written beside ``path`` and renamed, so that a crash leaves the old file or the new one, never half of one.

    Args:
        path: the file; its folder must exist.
        model, guide: the modules whose state is saved.
        extra: tensors, numbers, strings, and dicts and lists of them.

    Raises:
        OSError: it cannot be written; the path is named.
        TypeError: ``extra`` holds something else; a function in a module's place.
    """
    _check_modules(model, guide)
    try:
        write(path, content(model, guide) | {"extra": extra})
    except CheckpointError as error:
        raise TypeError(f"extra may hold tensors, numbers, strings, dicts and lists only, got {extra}") from error


def content(model: nn.Module, guide: nn.Module | None = None) -> dict[str, Any]:
    """What a file of weights holds: ``format``, ``model``, ``guide`` and ``layers``."""
    return {
        "format": FORMAT,
        "model": model.state_dict(),
        "guide": {} if guide is None else guide.state_dict(),
        "layers": _layers(model),
    }


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Writes tensors, numbers, strings, and dicts and lists of them, beside ``path``, reads them back, and renames.

    Raises:
        CheckpointError: content of other types, which :func:`read` would not take.
        OSError: it cannot be written; the path is named.
    """
    with atomic_write(path, tag="part") as unfinished:
        with unfinished.open("wb") as file:
            torch.save(content, file)
        read(unfinished, kind=content["format"])


def load(path: str | Path, model: nn.Module, guide: nn.Module | None = None) -> dict[str, Any]:
    """Loads a checkpoint into a model and its guide, all or nothing.

    Args:
        path: the file.
        model, guide: modules of the architecture that was saved; AutoGuides must be materialised first.

    Returns:
        What else was saved.

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
                f"{getattr(part, '__name__', part)} is a function, whose parameters lie in Pyro's store: use "
                "pyro.get_param_store().save(path) and .load(path) for them"
            )


def restore(content: dict[str, Any], model: nn.Module, guide: nn.Module | None = None, *, path: str | Path) -> None:
    """Puts what :func:`read` gave into a model and its guide, all or nothing.

    Raises:
        CheckpointError: of another architecture, naming the first differences.
    """
    targets = {"model": model} if guide is None else {"model": model, "guide": guide}
    differences = [
        f"layer {path or '(the model)'}: {saved} in the checkpoint, {_layers(model).get(path)} here"
        for path, saved in content["layers"].items()
        if _layers(model).get(path) != saved
    ]
    differences += [line for part, module in targets.items() for line in _differences(part, module, content[part])]
    if differences:
        shown = "\n  ".join(differences[:8]) + ("\n  …" if len(differences) > 8 else "")
        raise CheckpointError(f"{path} is of another architecture; build the model with its settings:\n  {shown}")
    for part, module in targets.items():
        module.load_state_dict(content[part])


def read(path: str | Path, *, kind: str = FORMAT) -> dict[str, Any]:
    """The content of a checkpoint on the CPU: ``model``, ``guide``, ``extra``; or that of another format of ours.

    Raises:
        CheckpointError: missing, damaged, or no checkpoint of this library.
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
    if not isinstance(content, dict) or content.get("format") != kind:
        raise CheckpointError(f"{path} is not a probattn checkpoint of format {kind}")
    if kind == FORMAT and not content.keys() >= PARTS:
        raise CheckpointError(f"{path} lacks {', '.join(sorted(PARTS - content.keys()))}; use another")
    return content


def _layers(model: nn.Module) -> dict[str, dict[str, int | str]]:
    """What the shapes of parameters do not show, such as the number of heads."""
    return {
        path: layer.signature() for path, layer in model.named_modules() if isinstance(layer, ProbabilisticAttention)
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
