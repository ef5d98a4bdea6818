"""Warm start: initial weights of a model from another architecture, with a report of which were carried over."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError


@dataclass(frozen=True)
class WarmStart:
    """Report of a warm start, as names of weights; ``print`` it to read it.

    Args:
        carried: weights of the model and the source with the same shape, now equal to the source's.
        fresh: weights of the model only, unchanged.
        unused: weights of the source only.
        reshaped: weights of both with different shapes, unchanged.
    """

    carried: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    reshaped: tuple[str, ...]

    def __str__(self) -> str:
        parts = (
            ("carried over", self.carried),
            ("fresh, not in the source", self.fresh),
            ("fresh, of another shape in the source", self.reshaped),
            ("unused, in the source only", self.unused),
        )
        return "\n".join(f"{len(names)} {title}{_list_names(names)}" for title, names in parts if names)


def warm_start(model: nn.Module, source: str | Path | Mapping[str, Tensor]) -> WarmStart:
    """Copy the weights of the same name and shape into a model, and leave the others unchanged.

    CGP attention is started from kernel attention in this way (CGP paper, sec. 5.1.1); its projections have the same
    names.

    Args:
        model: the model to start.
        source: a checkpoint file, such as another run's ``best.pt``, or the ``state_dict`` of a model.

    Raises:
        CheckpointError: a damaged checkpoint; a source without a matching weight, or with nothing but biases for one
            type of the model's attention layers; attention layers with another number of heads. The model is then
            unchanged.
    """
    where, saved, layers = "the source", source, {}
    if isinstance(source, str | Path):
        content = checkpoint.read(source)
        where, saved, layers = str(source), content["model"], content["layers"]
    here = model.state_dict()
    attention = {name: layer for name, layer in model.named_modules() if isinstance(layer, ProbabilisticAttention)}
    for path, layer in attention.items():
        heads = layers.get(path, {}).get("heads", layer.heads)
        if heads != layer.heads:
            raise CheckpointError(f"{where}: layer {path} has {heads} heads, here {layer.heads}; give both as many")
    both = [name for name in here if name in saved]
    report = WarmStart(
        carried=tuple(name for name in both if here[name].shape == saved[name].shape),
        fresh=tuple(name for name in here if name not in saved),
        unused=tuple(name for name in saved if name not in here),
        reshaped=tuple(name for name in both if here[name].shape != saved[name].shape),
    )
    matrices = [name for name in report.carried if here[name].dim() > 1]
    has_matrix: dict[str, bool] = {}  # by type of attention layer; a bias alone does not count
    for path, layer in attention.items():
        kind, prefix = type(layer).__name__, f"{path}." if path else ""
        has_matrix[kind] = has_matrix.get(kind, False) or any(name.startswith(prefix) for name in matrices)
    lacking = [f"matrix of the {kind} layers" for kind, carried in has_matrix.items() if not carried]
    if lacking or not report.carried:
        what = " and ".join(lacking) if report.carried else "weight"
        raise CheckpointError(f"no {what} in {where} has the name and shape of one here:\n{report}")
    with torch.no_grad():
        for name in report.carried:
            here[name].copy_(saved[name])
    return report


def _list_names(names: tuple[str, ...]) -> str:
    """Return names, one a line; names that differ only in the number of a layer share a line, with their count."""
    counts: dict[str, int] = {}
    for name in names:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        counts[pattern] = counts.get(pattern, 0) + 1
    return "".join(f"\n  {pattern}" + (f" ×{count}" if count > 1 else "") for pattern, count in counts.items())
