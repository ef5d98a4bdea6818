"""Parameter groups of the optimiser, by weight decay and learning rate."""

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor, nn

ParameterGroup = dict[str, list[nn.Parameter] | float]


def parameter_groups(
    model: nn.Module,
    guide: nn.Module,
    *,
    weight_decay: float,
    guide_lr_scale: float = 1.0,
    without: Collection[nn.Parameter] = (),
) -> list[ParameterGroup]:
    """Return the parameter groups of a model and its guide for a PyTorch optimiser.

    Weight decay acts on the weights of the model (see :func:`decayed_names`). The guide has none: the KL divergence
    regularises it. The learning rate of a group is that of the step times its ``lr_scale`` (see :func:`set_lr`).

    Args:
        model: the model.
        guide: its guide.
        weight_decay: weight decay of the weights.
        guide_lr_scale: ``lr_scale`` of the guide's parameters.
        without: parameters that another optimiser updates.
    """
    decayed = set(decayed_names(model))
    groups: dict[tuple[float, float], ParameterGroup] = {}

    def add(parameter: nn.Parameter, *, decay: float, lr_scale: float) -> None:
        group = {"params": [], "weight_decay": decay, "lr_scale": lr_scale}
        groups.setdefault((decay, lr_scale), group)["params"].append(parameter)

    for name, parameter in sorted(model.named_parameters(), key=lambda pair: pair[0] not in decayed):
        add(parameter, decay=weight_decay if name in decayed else 0.0, lr_scale=1.0)
    others = {id(parameter) for parameter in without}
    for parameter in guide.parameters():
        if id(parameter) not in others:
            add(parameter, decay=0.0, lr_scale=guide_lr_scale)
    return list(groups.values())


def set_lr(optimizers: Iterable[torch.optim.Optimizer], lr: float | Tensor) -> None:
    """Set the learning rate of each parameter group to ``lr`` times its ``lr_scale``."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]


def decayed_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters with weight decay: matrices (or larger tensors) that multiply activations.

    These have two dimensions or more and are called ``weight``, ``weights``, ``weight_…`` or ``…_weight``, as in
    PyTorch's linear, convolution, embedding, recurrent and attention layers, or are listed by their module in its
    attribute ``decayed_parameters``. Biases, normalisation layers, position and class embeddings that are bare
    parameters, inducing inputs, scales, noise, kernel parameters and the unconstrained values of constrained parameters
    (``PyroParam``) have no weight decay, since zero is not a natural value for them.
    """
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed = {known[id(parameter)] for module in model.modules() for parameter in _weights(module)}
    return [name for name in known.values() if name in decayed]


def _weights(module: nn.Module) -> Iterator[nn.Parameter]:
    if "norm" in type(module).__name__.lower():
        return
    listed = getattr(module, "decayed_parameters", ())
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dim() >= 2 and (name in listed or _is_weight(name)):
            yield parameter


def _is_weight(name: str) -> bool:
    if name.endswith("_unconstrained"):
        return False
    return name in ("weight", "weights") or name.startswith("weight_") or name.endswith("_weight")
