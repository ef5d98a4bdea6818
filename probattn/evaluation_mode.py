"""Evaluation mode of modules as a context manager."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
"""PyTorch's dropout modules, which are active in training mode alone."""


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Put modules in evaluation mode; on exit each submodule returns to its own mode, training or
    evaluation."""
    modes = [
        (submodule, submodule.training) for module in modules for submodule in module.modules()
    ]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for submodule, mode in modes:
            submodule.training = mode
