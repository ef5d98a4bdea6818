"""Warm start: initial weights of a model from another architecture."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from probattn import ProbabilisticAttention
from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError


def warm_start(model: nn.Module, source: str | Path | Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Copy the weights of the same name and shape into a model, and leave the others unchanged.

    CGP attention is started from kernel attention in this way (CGP paper, sec. 5.1.1); its
    projections have the same names.

    Args:
        model: the model to start.
        source: a checkpoint file, such as another run's ``best.pt``, or the ``state_dict`` of a
            model.

    Returns:
        Names of weights: ``carried`` over, ``fresh`` in the model, and ``unused`` in the source.

    Raises:
        CheckpointError: a damaged checkpoint; no weight, or nothing but biases for one type of the
            model's attention layers, is carried over; attention layers with another number of
            heads. The model is then unchanged.
    """
    content: Mapping[str, Any] = (
        checkpoint.read(source) if isinstance(source, str | Path) else {"model": source}
    )
    weights = content["model"]
    layers = content.get("layers", {})
    here = model.state_dict()
    carried = {
        name: value
        for name, value in weights.items()
        if name in here and value.shape == here[name].shape
    }
    matrices = [name for name, value in carried.items() if value.dim() > 1]
    number_of: Counter[str] = Counter()  # matrices by type of layer
    for path, layer in model.named_modules():
        if not isinstance(layer, ProbabilisticAttention):
            continue
        heads = layers.get(path, {}).get("heads", layer.heads)
        if heads != layer.heads:
            raise CheckpointError(
                f"layer {path} of the source has {heads} heads, here {layer.heads}"
            )
        prefix = f"{path}.".lstrip(".")
        if not {prefix + name for name in layer.state_dict()} <= carried.keys():
            carried.pop(f"{prefix}is_placed", None)  # inducing inputs may be fresh
        number_of[type(layer).__name__] += sum(name.startswith(prefix) for name in matrices)
    lacking = [kind for kind, number in number_of.items() if number == 0]
    if lacking or not carried:
        what = " and ".join(sorted(lacking)) or "model"
        raise CheckpointError(
            f"the source has no matrix of the names and shapes of the {what} here"
        )
    model.load_state_dict(carried, strict=False)
    return {
        "carried": list(carried),
        "fresh": [name for name in here if name not in carried],
        "unused": [name for name in weights if name not in carried],
    }
