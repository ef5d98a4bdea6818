"""Weights as safetensors files, which many programs read, and which cannot contain code."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import nn

from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.digest import UNSEALED
from probattn.inference.io.sealed_files import DamagedFileError, read_sealed, write_sealed


def save_safetensors(path: str | Path, model: nn.Module, guide: nn.Module | None = None, **metadata: str) -> None:
    """Save the weights of a model and its guide as tensors ``model.NAME`` and ``guide.NAME``.

    The metadata hold the format, a digest of the file and, like a checkpoint, the settings of layers that the shapes of
    parameters do not determine. The file is written atomically.

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
    metadata |= {"format": content["format"], "layers": json.dumps(content["layers"]), "digest": UNSEALED}
    write_sealed(path, to_bytes(tensors, metadata))


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
    try:
        content = read_sealed(path)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata, tensors = header["__metadata__"], from_bytes(content)
        layers = json.loads(metadata.pop("layers", "{}"))
    except FileNotFoundError as error:
        raise CheckpointError(f"no weights at {path}") from error
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from error
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {error}); use another") from error
    del metadata["digest"]
    if metadata.pop("format", None) != checkpoint.FORMAT:
        raise CheckpointError(f"{path} holds no weights of format {checkpoint.FORMAT}, as save_safetensors writes them")
    content = {"layers": layers, "extra": metadata}
    content |= {part: _select(part, tensors) for part in ("model", "guide")}
    checkpoint.check_parts(path, content)
    checkpoint.restore(content, model, guide, path=path)
    return metadata


def _select(part: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of model or guide by their names inside it."""
    return {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(f"{part}.")}
