"""Floating-point operations of a step, and the rate of a matrix product on a device."""

import math

import torch
from torch.utils import flop_counter

from probattn.experiments.bench.timing import Step, seconds

_SIZES = {"cpu": 2048, "cuda": 8192}
_DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16)}


def count(step: Step) -> int:
    """Count the operations of matrix products, attention kernels, factorisations and solves, not elementwise ones.

    PyTorch before 2.15 does not count attention kernels on a CPU.
    """
    with flop_counter.FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
        step()
    return counter.get_total_flops()


def matmul_rates(device: str, *, size: int | None = None, rounds: int = 5) -> dict[str, float]:
    """Return the best FLOP/s of a square matrix product by dtype: ``float32``, on CUDA also ``bfloat16``.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        size: rows and columns; by default large enough to saturate the device.
        rounds: number of timed products.
    """
    size = size or _SIZES[device]
    rates = {}
    for dtype in _DTYPES[device]:
        a, b = torch.randn(2, size, size, device=device).to(dtype)
        a @ b
        best = min(seconds(lambda a=a, b=b: a @ b, device) for _ in range(rounds))
        rates[str(dtype).removeprefix("torch.")] = 2 * size**3 / best
    return rates


_FORMULAS = {  # functions of the shapes of the arguments
    torch.ops.aten.linalg_cholesky_ex: lambda a, *_, **__: math.prod(a[:-2]) * a[-1] ** 3 // 3,
    torch.ops.aten.linalg_solve_triangular: lambda a, *_, out_shape, **__: math.prod(out_shape) * a[-1],
    torch.ops.aten.cholesky_solve: lambda b, tril, *_, out_shape, **__: 2 * math.prod(out_shape) * tril[-1],
}
