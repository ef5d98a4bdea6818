"""Compilation of the blocks of a network with :func:`torch.compile`."""

from functools import cache
from types import FunctionType, MethodType

import torch
from torch import nn

from probattn.attention.base import ProbabilisticAttention
from probattn.sites import SiteModule


@cache
def _leave_sites_in_python() -> None:
    """Let the methods that make statements of Pyro run in Python where their callers are compiled."""
    for name in ("sample", "sample_local", "observe", "is_scored"):
        setattr(SiteModule, name, torch.compiler.disable(getattr(SiteModule, name)))


def compile_blocks(network: nn.Module) -> None:
    """Compile each module that has an attention layer as a child, in place; names of sites and weights stay the same.

    Sample statements run in Python, and what is between them (the pure functions of the layers, and blocks without
    sites) is compiled, once for all blocks of a kind. Independent small operations of a block, such as the conversions
    of its weights to another precision, share a kernel on GPUs. Samples drawn inside have the same distribution as
    without compilation, but not the same values.

    Args:
        network: network or model.
    """
    _leave_sites_in_python()
    for module in list(network.modules()):
        layers = [type(child) for child in module.children() if isinstance(child, ProbabilisticAttention)]
        if layers:
            if "forward" not in vars(module):
                module.forward = MethodType(_copy(type(module).forward, *layers), module)
            module.compile(options={"combo_kernels": True})


@cache
def _copy(function: FunctionType, *layers: type) -> FunctionType:
    """Return the function with a code object of its own, the same for the same types of layers.

    PyTorch stores compiled code at the code object, and runs the first whose conditions hold. That of a block with a
    sample statement is no whole graph, and its conditions hold for a block without one too.
    """
    code, names = function.__code__.replace(), function.__globals__
    copy = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    return copy
