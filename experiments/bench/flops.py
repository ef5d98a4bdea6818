"""Floating-point operations of a step, and the rate of a matrix product on a device."""

import math

import torch
from torch.utils import flop_counter

from probattn.experiments.bench.timing import Step, seconds

# Private operators of scaled_dot_product_attention on a CPU, which have no public name.
CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
CPU_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

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


_FORMULAS = {  # functions of the shapes of the arguments
    # Attention on CPUs, which PyTorch's own counter knows from 2.15 on.
    CPU_ATTENTION: lambda query, key, value, *_, **__: flop_counter.sdpa_flop_count(query, key, value),
    CPU_ATTENTION_BACKWARD: lambda *shapes, **_: flop_counter.sdpa_backward_flop_count(*shapes[:4]),
    torch.ops.aten.linalg_cholesky_ex: lambda a, *_, **__: math.prod(a[:-2]) * a[-1] ** 3 // 3,
    torch.ops.aten.linalg_solve_triangular: lambda a, *_, out_shape, **__: math.prod(out_shape) * a[-1],
    torch.ops.aten.cholesky_solve: lambda b, tril, *_, out_shape, **__: 2 * math.prod(out_shape) * tril[-1],
}
