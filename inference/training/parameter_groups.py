"""Parameter groups of the optimiser: weights with weight decay, all other parameters without."""

from collections.abc import Iterator

from torch import nn

ParameterGroup = dict[str, list[nn.Parameter] | float]


def parameter_groups(model: nn.Module, guide: nn.Module, *, weight_decay: float) -> list[ParameterGroup]:
    """Return the non-empty parameter groups of a model and its guide for a PyTorch optimiser.

    Weight decay acts on the weights of the model (see :func:`decayed_names`). The guide has none: the KL divergence
    regularises it.

    Args:
        model: the model.
        guide: its guide.
        weight_decay: weight decay of the first group.
    """
    decayed = set(decayed_names(model))
    weights = [parameter for name, parameter in model.named_parameters() if name in decayed]
    others = [parameter for name, parameter in model.named_parameters() if name not in decayed]
    groups = [
        {"params": weights, "weight_decay": weight_decay},
        {"params": [*others, *guide.parameters()], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


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
