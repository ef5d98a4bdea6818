"""Models with fixed parameters."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from probattn.evaluation_mode import evaluation_mode
from probattn.programs import Program, local_params, modules


@contextmanager
def frozen(model: Program) -> Iterator[None]:
    """Context manager for evaluation mode without gradients for the parameters, kept out of Pyro's param store.

    Modes and ``requires_grad`` of all modules and parameters are restored on exit.
    """
    held = nn.ModuleList(modules(model))
    with evaluation_mode(held), local_params(model):
        flags = [(parameter, parameter.requires_grad) for parameter in held.parameters()]
        try:
            held.requires_grad_(False)
            yield
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
