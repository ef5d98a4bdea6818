"""Parameter groups of the optimiser, by weight decay and by learning rate."""

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

ParameterGroup = dict[str, Any]
"""Parameters ``params``, their learning rate ``lr`` and their ``weight_decay``, as PyTorch's optimisers take them."""


def parameter_groups(
    model: nn.Module,
    guide: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    lr_scale: Mapping[str, float] | None = None,
    guide_lr_scale: float = 1.0,
    without: Collection[nn.Parameter] = (),
) -> list[ParameterGroup]:
    """Return the parameter groups of a model and its guide for a PyTorch optimiser.

    Weight decay acts on the weights of the model (see :func:`decayed_names`). The guide has none: the KL divergence
    regularises it.

    Args:
        model: the model.
        guide: its guide.
        lr: learning rate.
        weight_decay: weight decay of the weights.
        lr_scale: factors on the model's learning rate by pattern of names (see :func:`lr_factors`).
        guide_lr_scale: factor on the guide's learning rate.
        without: parameters that another optimiser updates.

    Raises:
        ValueError: a pattern that matches no parameter.
    """
    decayed, factors = set(decayed_names(model)), lr_factors(model, lr_scale or {})
    groups: dict[tuple[float, float], ParameterGroup] = {}

    def add(parameter: nn.Parameter, *, decay: float, factor: float) -> None:
        group = {"params": [], "lr": lr * factor, "weight_decay": decay}
        groups.setdefault((decay, factor), group)["params"].append(parameter)

    for name, parameter in sorted(model.named_parameters(), key=lambda pair: pair[0] not in decayed):
        add(parameter, decay=weight_decay if name in decayed else 0.0, factor=factors[name])
    others = {id(parameter) for parameter in without}
    for parameter in guide.parameters():
        if id(parameter) not in others:
            add(parameter, decay=0.0, factor=guide_lr_scale)
    return list(groups.values())


def lr_factors(model: nn.Module, lr_scale: Mapping[str, float]) -> dict[str, float]:
    """Return the factor on the learning rate of each parameter of a model, by name.

    Args:
        model: the model.
        lr_scale: factors by pattern of names, as in :mod:`fnmatch`: ``"network.encoder.*"``, or several with ``|``
            between them. The last pattern that matches a name counts; without one the factor is 1.

    Raises:
        ValueError: a pattern that matches no parameter.
    """
    factors = {name: 1.0 for name, _ in model.named_parameters()}
    for pattern, factor in lr_scale.items():
        matched = [name for name in factors if any(fnmatchcase(name, each) for each in pattern.split("|"))]
        if not matched:
            some = ", ".join(list(factors)[:3])
            raise ValueError(f"lr_scale: the pattern {pattern!r} matches no parameter of the model, such as {some}")
        factors |= dict.fromkeys(matched, factor)
    return factors


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
