"""Floating-point operations of a step, and the rate of a matrix product on a device."""

import math
from typing import Any

import torch
from torch.utils import flop_counter

from probattn.experiments.bench.timing import Step, seconds
from probattn.torch_compat import CPU_ATTENTION, CPU_ATTENTION_BACKWARD

_SIZES = {"cpu": 2048, "cuda": 8192}
_DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16)}


def count(step: Step) -> int:
    """Count the operations of matrix products, attention kernels, factorisations and solves, not elementwise ones."""
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


def _cholesky(matrix: torch.Size, *_: Any, **__: Any) -> int:
    return math.prod(matrix[:-2]) * matrix[-1] ** 3 // 3


def _solve_triangular(matrix: torch.Size, b: torch.Size, *_: Any, out_shape: torch.Size, **__: Any) -> int:
    return math.prod(out_shape) * matrix[-1]


def _cholesky_solve(b: torch.Size, tril: torch.Size, *_: Any, out_shape: torch.Size, **__: Any) -> int:
    return 2 * math.prod(out_shape) * tril[-1]


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return flop_counter.sdpa_flop_count(query, key, value)


def _attention_backward(
    gradient: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any
) -> int:
    return flop_counter.sdpa_backward_flop_count(gradient, query, key, value)


_FORMULAS = {
    # Attention on CPUs, which PyTorch's own counter knows from 2.15 on.
    CPU_ATTENTION: _attention,
    CPU_ATTENTION_BACKWARD: _attention_backward,
    torch.ops.aten.linalg_cholesky_ex: _cholesky,
    torch.ops.aten.linalg_solve_triangular: _solve_triangular,
    torch.ops.aten.cholesky_solve: _cholesky_solve,
}
