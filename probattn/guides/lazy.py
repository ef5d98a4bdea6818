"""Guides whose parameters are created in their first run: AutoGuides and functions."""

import torch
from pyro.infer.autoguide import AutoCallable, AutoGuide
from torch import nn

from probattn.guides.checks import check_global
from probattn.programs import FunctionModule, Program, local_params, modules


def is_lazy(guide: nn.Module) -> bool:
    """Return True for guides with parameters that do not exist yet."""
    return lacks_prototype(guide) or any(
        isinstance(part, FunctionModule) and not part.has_run for part in guide.modules()
    )


def lacks_prototype(guide: Program) -> bool:
    """Return True for a guide that is or holds an AutoGuide that has not run yet."""
    parts = (part for module in modules(guide) for part in module.modules())
    return any(
        isinstance(part, AutoGuide) and not isinstance(part, AutoCallable) and part.prototype_trace is None
        for part in parts
    )


def materialise(guide: nn.Module, batch: tuple) -> None:
    """Create the parameters of an AutoGuide or a function by one run, before an optimiser or a checkpoint needs them.

    Guides of this library have theirs from construction; for them this does nothing.

    Args:
        guide: any guide, a function as :func:`probattn.programs.as_module` wraps it.
        batch: the arguments of the model, ``(x, y)`` or ``(x, y, mask)``.
    """
    if is_lazy(guide):
        with torch.no_grad(), local_params(guide):
            guide(*batch)
        check_global(guide)
