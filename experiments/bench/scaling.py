"""Benchmark of one layer over the number of tokens N: time, peak memory, and the power of N that they grow with."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from probattn import CGPAttention, KEPSVGPAttention, KernelAttention, SGPAttention, SoftmaxAttention, SparseCGPAttention
from probattn.attention.base import LayerFactory
from probattn.experiments.bench.meter import Measured, Meter
from probattn.experiments.bench.steps import layer_step
from probattn.experiments.runs.environment import total_memory

LARGEST = 3
"""Number of the largest sizes that an exponent is fitted to."""


class Growth(NamedTuple):
    """Layer, and upper bounds of the powers of N in its time and memory, which predict the cost of a larger size."""

    factory: LayerFactory
    time: int
    memory: int


def over_tokens(
    meter: Meter,
    *,
    rounds: int,
    limit: float,
    sizes: Sequence[int] = (256, 1024, 4096, 16384),
    dim: int = 128,
    heads: int = 4,
    rank: int = 10,
    inducing: int = 16,
) -> dict[str, Any]:
    """Measure forward and backward of each layer at batch size 1 over ascending ``sizes``, numbers of tokens.

    Steps that would take longer than ``limit`` seconds, or half of the device's memory, are skipped.
    """
    layers = {
        "softmax": Growth(SoftmaxAttention, 2, 2),
        "kernel": Growth(KernelAttention, 2, 2),
        "KEP-SVGP add": Growth(KEPSVGPAttention.partial(rank=rank, merge="add"), 1, 1),
        "SGPA": Growth(SGPAttention.partial(inducing=inducing), 2, 2),
        "sparse CGP, collapsed": Growth(SparseCGPAttention.partial(inducing=inducing, collapsed=True), 1, 1),
        "CGP, collapsed": Growth(CGPAttention.partial(collapsed=True), 3, 2),
    }
    memory_limit = total_memory(meter.device) / 2
    measured: dict[str, dict[int, Measured]] = {name: {} for name in layers}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in layers}
    for size in sizes:
        cases = {}
        for name, growth in layers.items():
            reason = reason_to_skip(growth, measured[name], size, limit=limit, memory_limit=memory_limit)
            if reason:
                rows[name].append({"case": f"N {size}", "tokens": size, "left_out": reason})
            else:
                cases[name] = layer_step(growth.factory, dim, heads, batch=1, tokens=size, device=meter.device)
        found = meter.measure(cases, rounds=rounds)
        for name, each in found.items():
            measured[name][size] = each
            row = meter.row(f"N {size}", each, f"softmax, N {size}", found.get("softmax"))
            rows[name].append(row | {"tokens": size})
    sections = [
        {"title": name, "rounds": rounds, "rows": rows[name], "exponents": exponents(measured[name])} for name in layers
    ]
    title = f"forward + backward, batch 1, dim {dim}, {heads} heads, rank {rank}, {inducing} inducing inputs, float32"
    return {"title": title, "sections": sections}


def reason_to_skip(
    growth: Growth, measured: dict[int, Measured], size: int, *, limit: float, memory_limit: float
) -> str:
    """Return why a size is skipped, predicted from the largest size measured; an empty string if it is not."""
    if not measured:
        return ""
    largest = max(measured)
    times = size / largest
    seconds = np.median(measured[largest].seconds).item() * times**growth.time
    peak = measured[largest].peak * times**growth.memory
    if seconds > limit:
        return f"skipped: predicted {seconds:.1f} s"
    return f"skipped: predicted {peak / 2**30:.1f} GiB" if peak > memory_limit else ""


def exponents(measured: dict[int, Measured]) -> dict[str, float]:
    """Fit the powers of N in time and memory by least squares to the largest sizes; empty for a single size."""
    sizes = sorted(measured)[-LARGEST:]
    if len(sizes) < 2:
        return {}
    figures = [(np.median(measured[size].seconds), measured[size].peak) for size in sizes]
    time, peak = np.polyfit(np.log(sizes), np.log(figures), 1)[0].tolist()
    return {"time": time, "memory": peak}
