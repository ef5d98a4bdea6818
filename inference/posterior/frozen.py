"""Models with fixed parameters."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from probattn.evaluation_mode import evaluation_mode
from probattn.guides import Program, unwrapped
from probattn.inference.programs import own_parameters


@contextmanager
def frozen(model: Program) -> Iterator[None]:
    """Context manager for evaluation mode without gradients for the parameters.

    Modes and ``requires_grad`` of all modules and parameters are restored on exit.
    """
    inner = unwrapped(model)
    module = inner if isinstance(inner, nn.Module) else nn.Module()
    with own_parameters(model), evaluation_mode(module):
        flags = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
        try:
            module.requires_grad_(False)
            yield
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
