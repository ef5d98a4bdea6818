"""Evaluation mode of modules as a context manager."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from probattn.handlers import exclusive


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Put modules in evaluation mode; on exit each submodule returns to its own mode, training or evaluation.

    Other threads wait (see :func:`~probattn.handlers.exclusive`).
    """
    with exclusive():
        modes = [(part, part.training) for module in modules for part in module.modules()]
        try:
            for module in modules:
                module.eval()
            yield
        finally:
            for part, mode in modes:
                part.training = mode
