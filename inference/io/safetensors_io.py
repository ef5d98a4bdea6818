"""Weights as safetensors files, which many programs read, and which cannot contain code."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import nn

from probattn.inference.io import checkpoint
from probattn.inference.io.atomic_write import atomic_write
from probattn.inference.io.checkpoint import CheckpointError


def save_safetensors(path: str | Path, model: nn.Module, guide: nn.Module | None = None, **metadata: str) -> None:
    """Save the weights of a model and its guide as tensors ``model.NAME`` and ``guide.NAME``.

    The metadata hold the format and, like a checkpoint, the settings of layers that the shapes of parameters do not
    determine. The file is written atomically.

    Args:
        path: the file; its folder must exist.
        model, guide: modules whose state is saved. Tensors that they share are written twice.
        metadata: further metadata.
    """
    content = checkpoint.weights_content(model, guide)
    tensors = {
        f"{part}.{name}": value.detach().clone(memory_format=torch.contiguous_format)
        for part in ("model", "guide")
        for name, value in content[part].items()
    }
    metadata |= {"format": content["format"], "layers": json.dumps(content["layers"])}
    with atomic_write(path) as draft:
        draft.write_bytes(to_bytes(tensors, metadata))


def load_safetensors(path: str | Path, model: nn.Module, guide: nn.Module | None = None) -> dict[str, str]:
    """Load a file of :func:`save_safetensors` into a model and its guide, all or nothing.

    Args:
        path: the file.
        model, guide: modules of the architecture that was saved; AutoGuides must be materialised first.

    Returns:
        The further metadata.

    Raises:
        CheckpointError: missing, damaged, or of another architecture, naming the first differences.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no weights at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = dict(file.metadata() or {}), file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
        layers = json.loads(metadata.pop("layers", "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or half-written ({type(error).__name__}); use another") from error
    if metadata.pop("format", None) != checkpoint.FORMAT:
        raise CheckpointError(f"{path} holds no weights of format {checkpoint.FORMAT}, as save_safetensors writes them")
    content = {"layers": layers} | {part: _select(part, tensors) for part in ("model", "guide")}
    checkpoint.restore(content, model, guide, path=path)
    return metadata


def _select(part: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of model or guide by their names inside it."""
    return {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(f"{part}.")}
