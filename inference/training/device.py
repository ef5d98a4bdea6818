"""Settings of a device in training: precision of products, kernels of attention, determinism,
compiled blocks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType, MethodType

import torch
from torch import nn

from probattn import ProbabilisticAttention
from probattn.functional import dtypes
from probattn.inference.training.options import TrainOptions
from probattn.sites import SiteModule


@contextmanager
def device_settings(options: TrainOptions, device: torch.device) -> Iterator[None]:
    """Set PyTorch's global settings of a run inside, and restore them at the end.

    Deterministic runs use deterministic algorithms only; PyTorch raises an error where there is
    none. On a GPU, cuBLAS reads the environment variable ``CUBLAS_WORKSPACE_CONFIG`` at its first
    call in the process. If it is not set, it is set here to ``:4096:8`` (24 MiB of GPU memory). If
    cuBLAS was called without it before, PyTorch raises a ``RuntimeError`` that names the variable:
    then set it before Python starts.

    Attention on GPUs is left to the flash and memory-efficient kernels. On Hopper GPUs the backward
    pass of cuDNN's, which PyTorch would prefer in half precision, returns NaN for masked sequences
    of certain lengths (n mod 128 = 64; https://github.com/pytorch/pytorch/issues/196678). The
    others are as fast at the sizes of the presets.
    """
    precision = options.matmul_precision or ("high" if device.type == "cuda" else None)
    cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()
    benchmark = torch.backends.cudnn.benchmark
    determinism = torch.get_deterministic_debug_mode()
    torch.backends.cuda.enable_cudnn_sdp(False)
    if options.deterministic:
        if torch.cuda.is_available():
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.set_deterministic_debug_mode("error")
        torch.backends.cudnn.benchmark = False
    try:
        with dtypes.float32_products(precision):
            yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(cudnn_attention)
        torch.set_deterministic_debug_mode(determinism)
        torch.backends.cudnn.benchmark = benchmark


@cache
def _leave_sites_in_python() -> None:
    """Let the methods that make statements of Pyro run in Python where their callers are
    compiled."""
    for name in ("sample", "sample_local", "observe", "is_scored"):
        setattr(SiteModule, name, torch.compiler.disable(getattr(SiteModule, name)))


def compile_blocks(network: nn.Module) -> None:
    """Compile each module that has an attention layer as a child, in place; names of sites and
    weights stay the same.

    Sample statements run in Python, and what is between them (the pure functions of the layers, and
    blocks without sites) is compiled, once for all blocks of a kind. Independent small operations
    of a block, such as the conversions of its weights to another precision, share a kernel on GPUs.
    Samples drawn inside have the same distribution as without compilation, but not the same values.
    """
    _leave_sites_in_python()
    for module in list(network.modules()):
        children = module.children()
        layers: list[type] = [
            type(child) for child in children if isinstance(child, ProbabilisticAttention)
        ]
        if layers:
            if "forward" not in vars(module):
                module.forward = MethodType(_copy(type(module).forward, *layers), module)
            module.compile(options={"combo_kernels": True})


@cache
def _copy(function: FunctionType, *layers: type) -> FunctionType:
    """Return the function with a code object of its own, the same for the same types of layers.

    PyTorch stores compiled code at the code object, and runs the first whose conditions hold. That
    of a block with a sample statement is no whole graph, and its conditions hold for a block
    without one too.
    """
    copy = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
