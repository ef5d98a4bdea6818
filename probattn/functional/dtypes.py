"""Floating-point types of factorisations: float32 or better, outside autocast and under
half-precision weights."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor, nn


def exact(device_type: str) -> AbstractContextManager:
    """Compute in float32 or better inside: without autocast, and without TF32."""
    is_autocast = torch.is_autocast_enabled(device_type)
    if not is_autocast and (torch.compiler.is_compiling() or matmul_precision() == "highest"):
        return nullcontext()
    stack = ExitStack()
    if is_autocast:  # else an exported program would repeat it
        stack.enter_context(torch.autocast(device_type, enabled=False))
    stack.enter_context(float32_products("highest"))
    return stack


@contextmanager
def float32_products(precision: str | None) -> Iterator[None]:
    """Set the precision of float32 matrix products inside (see
    :func:`torch.set_float32_matmul_precision`).

    ``"highest"`` is for what is factorised: a kernel matrix in TF32, of 10 bits, may have no
    Cholesky factor. Gradients are computed later, with the precision at that time. None, and code
    under :func:`torch.compile`, change nothing.
    """
    before = None if torch.compiler.is_compiling() else matmul_precision()
    if precision is None or before is None or before == precision:
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def matmul_precision() -> str | None:
    """Return PyTorch's precision of float32 products, None where it was set for each backend on its
    own."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32, or unchanged in float64."""
    return x if x.dtype == torch.float64 else x.float()


def apply_linear(linear: nn.Module, x: Tensor) -> Tensor:
    """Apply a linear module to x, rounded to half precision if the module's parameters are in half
    precision."""
    dtype = next(linear.parameters(), x).dtype
    return linear(x.to(dtype) if dtype.itemsize < 4 else x)
