"""Models with fixed parameters."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from probattn.programs import Program, local_params, modules


@contextmanager
def frozen(model: Program) -> Iterator[None]:
    """Context manager for evaluation mode without gradients for the parameters, kept out of Pyro's param store.

    Modes and ``requires_grad`` of all modules and parameters are restored on exit.
    """
    held = nn.ModuleList(modules(model))
    modes = [(module, module.training) for module in held.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in held.parameters()]
    try:
        held.eval()
        held.requires_grad_(False)
        with local_params(model):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
