"""Evaluation mode of modules as a context manager."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules import dropout

DROPOUTS = tuple(getattr(nn, name) for name in dropout.__all__)
"""PyTorch's dropout modules, which are active in training mode alone."""


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Put modules in evaluation mode; on exit each submodule returns to its own mode, training or
    evaluation."""
    everything = nn.ModuleList(modules)
    modes = {submodule: submodule.training for submodule in everything.modules()}
    try:
        everything.eval()
        yield
    finally:
        for submodule, mode in modes.items():
            submodule.training = mode
