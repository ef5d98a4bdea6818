"""Starts a model from the weights of another architecture, and says which were carried over."""

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
    """What a warm start did, by the names of weights; ``print`` it to read it.

    Args:
        carried: of the model and the source in one shape, now equal to the source's.
        fresh: of the model alone, as they were.
        unused: of the source alone.
        reshaped: of both in different shapes, in the model as they were.
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
            ("unused, in the source alone", self.unused),
        )
        return "\n".join(f"{len(names)} {title}{_listed(names)}" for title, names in parts if names)


def warm_start(model: nn.Module, source: str | Path | Mapping[str, Tensor]) -> WarmStart:
    """Copies the weights of the same name and shape into a model, and leaves the others as they are.

    CGP attention starts so from kernel attention (CGP paper, sec. 5.1.1), whose projections have the same names.

    Args:
        model: the model to start.
        source: a checkpoint's file, such as another run's ``best.pt``, or the ``state_dict`` of a model.

    Raises:
        CheckpointError: a damaged checkpoint; a source of which no weight fits, or nothing but biases of one kind of
            the model's attention layers; attention layers with another number of heads. The model is then as it was.
    """
    where, saved, layers = "the source", source, {}
    if isinstance(source, str | Path):
        content = checkpoint.read(source)
        where, saved, layers = str(source), content["model"], content["layers"]
    own = model.state_dict()
    attention = {name: layer for name, layer in model.named_modules() if isinstance(layer, ProbabilisticAttention)}
    for path, layer in attention.items():
        heads = layers.get(path, {}).get("heads", layer.heads)
        if heads != layer.heads:
            raise CheckpointError(f"{where}: layer {path} has {heads} heads, here {layer.heads}; give both as many")
    both = [name for name in own if name in saved]
    report = WarmStart(
        carried=tuple(name for name in both if own[name].shape == saved[name].shape),
        fresh=tuple(name for name in own if name not in saved),
        unused=tuple(name for name in saved if name not in own),
        reshaped=tuple(name for name in both if own[name].shape != saved[name].shape),
    )
    lacking = sorted(_layers_without(report.carried, own, attention))
    if lacking or not report.carried:
        what = f"matrix of the {' and '.join(lacking)} layers" if report.carried else "weight"
        raise CheckpointError(f"no {what} in {where} has the name and shape of one here:\n{report}")
    with torch.no_grad():
        for name in report.carried:
            own[name].copy_(saved[name])
    return report


def _layers_without(
    carried: tuple[str, ...], own: dict[str, Tensor], attention: dict[str, ProbabilisticAttention]
) -> set[str]:
    """The kinds of attention layers of which no matrix is carried over; a bias alone means nothing."""
    paths: dict[str, list[str]] = {}
    for path, layer in attention.items():
        paths.setdefault(type(layer).__name__, []).append(f"{path}." if path else "")
    matrices = [name for name in carried if own[name].dim() > 1]
    return {kind for kind, inside in paths.items() if not any(name.startswith(tuple(inside)) for name in matrices)}


def _listed(names: tuple[str, ...]) -> str:
    """A line each of names, where those that differ in the number of a layer are one, with their count."""
    counts: dict[str, int] = {}
    for name in names:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        counts[pattern] = counts.get(pattern, 0) + 1
    return "".join(f"\n  {pattern}" + (f" ×{count}" if count > 1 else "") for pattern, count in counts.items())
