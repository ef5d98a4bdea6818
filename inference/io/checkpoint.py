"""Checkpoints: written atomically, read without unpickling, and checked completely before a weight changes."""

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from probattn.attention.base import ProbabilisticAttention
from probattn.inference import guide_checks
from probattn.inference.io.sealed_files import DamagedFileError, read_sealed, write_sealed_zip
from probattn.inference.io.tensor_archive import from_archive, to_archive

FORMAT = "probattn-1"
PARTS = {"model", "guide", "layers", "extra"}
EXTRA_STATE = "_extra_state"
"""PyTorch's name of a module's own state, whose shape the module chooses."""


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
        CheckpointError: the state of a module holds something else than tensors, which could not be loaded.
        OSError: it cannot be written; names the path.
        TypeError: ``extra`` holds something else, or a function was passed instead of a module.
    """
    _check_modules(model, guide)
    content = weights_content(model, guide) | {"extra": extra}
    check_parts(path, content)
    try:
        write(path, content)
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


def write(path: str | Path, content: dict[str, Any], *, tag: str | None = "part") -> None:
    """Write tensors, numbers, strings, and dicts and lists of them atomically, with a digest, if they can be read back.

    Args:
        path: the file; its folder must exist.
        content: the content, with its format as ``format``.
        tag: as for :func:`~probattn.inference.io.atomic_write.atomic_write`.

    Raises:
        CheckpointError: content of other types, which :func:`read` would refuse.
        OSError: it cannot be written; names the path.
    """
    archive = to_archive(content)
    try:
        from_archive(archive)
    except Exception as error:
        raise CheckpointError(f"{path}: the content could not be read back ({error})") from error
    write_sealed_zip(path, archive, tag=tag)


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
    model.load_state_dict(content["model"])
    if guide is not None:
        guide.load_state_dict(content["guide"])


def check_architecture(
    content: dict[str, Any], model: nn.Module, guide: nn.Module | None = None, *, path: str | Path
) -> None:
    """Check that :func:`restore` can load the content into a model and its guide.

    Raises:
        CheckpointError: of another architecture, naming the first differences; a guide without parameters yet.
    """
    if guide is not None and guide_checks.is_lazy(guide):
        raise CheckpointError(
            f"{path} cannot be loaded into this {type(guide).__name__} yet, whose parameters are created in its first "
            "run: call inference.materialise(guide, (x, y)) with a batch of the training data, then load it"
        )
    targets = {"model": model} if guide is None else {"model": model, "guide": guide}
    layers = _layer_signatures(model)
    differences = [
        f"layer {name or '(the model)'}: {saved} in the checkpoint, {layers.get(name)} here"
        for name, saved in content["layers"].items()
        if layers.get(name) != saved
    ]
    differences += [line for part, module in targets.items() for line in _differences(part, module, content[part])]
    if differences:
        first = "\n  ".join(differences[:8]) + ("\n  …" if len(differences) > 8 else "")
        raise CheckpointError(f"{path} is of another architecture; build the model with its settings:\n  {first}")


def read(path: str | Path, *, expected: str = FORMAT) -> dict[str, Any]:
    """Return the content of a checkpoint on the CPU: ``model``, ``guide``, ``layers`` and ``extra``.

    Args:
        path: the file.
        expected: format of the file; other formats of this library have other content.

    Raises:
        CheckpointError: missing, damaged, or not a checkpoint of this library.
    """
    try:
        archive = io.BytesIO(read_sealed(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"no checkpoint at {path}") from error
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from error
    try:
        content = from_archive(archive)
    except Exception as error:
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {error}); use another") from error
    if not isinstance(content, dict) or content.get("format") != expected:
        raise CheckpointError(f"{path} is not a probattn checkpoint of format {expected}")
    if expected == FORMAT:
        check_parts(path, content)
    return content


def check_extra(path: str | Path, extra: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Check that the extra values of a checkpoint include those of these names and types.

    Raises:
        CheckpointError: one is missing, or of another type.
    """
    wrong = [name for name, kind in kinds.items() if name not in extra or not isinstance(extra[name], kind)]
    if wrong:
        raise CheckpointError(f"{path}: extra lacks {', '.join(wrong)}, or holds another type there; use another")


@contextlib.contextmanager
def refuse_wrong_types(path: str | Path) -> Iterator[None]:
    """Turn the errors of missing keys and wrong types, where the content of a file is used, into CheckpointErrors."""
    try:
        yield
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is damaged: a value is missing or of another type ({type(error).__name__}: {error}); use another"
        ) from error


def check_parts(path: str | Path, content: dict[str, Any]) -> None:
    """Check the parts of a file of weights, before any is used.

    Raises:
        CheckpointError: a part is missing, or of another type.
    """
    if not content.keys() >= PARTS:
        raise CheckpointError(f"{path} lacks {', '.join(sorted(PARTS - content.keys()))}; use another")
    kinds = {"model": torch.Tensor, "guide": torch.Tensor, "layers": dict, "extra": object}
    for part, kind in kinds.items():
        entries = content[part]
        if not isinstance(entries, dict) or not all(
            isinstance(name, str) and isinstance(value, kind) for name, value in entries.items()
        ):
            raise CheckpointError(f"{path}: {part} is not a dict from names to {kind.__name__}s; use another")


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
        if name in saved and own[name].shape != saved[name].shape and not name.endswith(EXTRA_STATE)
    ]
