"""Weights as safetensors files, which many programs read, and which cannot contain code."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import nn

from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.files import regular_file, undamaged, write_bytes


def save_safetensors(
    path: str | Path, model: nn.Module, guide: nn.Module | None = None, **metadata: str
) -> None:
    """Save the weights of a model and its guide as tensors ``model.NAME`` and ``guide.NAME``.

    The metadata hold, like a checkpoint, the settings of layers that the shapes of parameters do
    not determine. The file is written atomically.

    Args:
        path: the file; its folder must exist.
        model, guide: modules whose state is saved. Tensors that they share are written twice.
        metadata: further metadata.
    """
    write_bytes(path, weights_as_bytes(model, guide, **metadata))


def weights_as_bytes(model: nn.Module, guide: nn.Module | None = None, **metadata: str) -> bytes:
    """Return the content of a file of :func:`save_safetensors`."""
    content = checkpoint.weights(model, guide)
    tensors = {
        f"{role}.{name}": value.clone(memory_format=torch.contiguous_format)
        for role in ("model", "guide")
        for name, value in content[role].items()
    }
    return to_bytes(tensors, metadata | {"layers": json.dumps(content["layers"])})


def load_safetensors(
    path: str | Path, model: nn.Module, guide: nn.Module | None = None
) -> dict[str, str]:
    """Load a file of :func:`save_safetensors` into a model and its guide, all or nothing.

    Args:
        path: the file.
        model, guide: modules of the architecture that was saved; AutoGuides must be materialised
            first.

    Returns:
        The further metadata.

    Raises:
        CheckpointError: missing, damaged, or of another architecture, naming the first differences.
    """
    content: dict[str, dict] = {"model": {}, "guide": {}}
    advice = "load what save_safetensors has written, or restore it"
    with undamaged(path, CheckpointError, advice=advice):
        with safe_open(regular_file(Path(path)), framework="pt") as file:
            metadata = file.metadata()
            for key in file.keys():  # noqa: SIM118 - it is no dict
                role, _, name = key.partition(".")
                content[role][name] = file.get_tensor(key)
        content["layers"] = json.loads(metadata.pop("layers"))
        checkpoint.check_structure(content | {"extra": metadata})
    checkpoint.restore(content, model, guide, path=path)
    return metadata
