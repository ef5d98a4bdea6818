"""Evaluation mode of modules as a context manager."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Put modules in evaluation mode; on exit each submodule returns to its own mode, training or evaluation."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
