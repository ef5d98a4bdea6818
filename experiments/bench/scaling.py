"""Time and peak memory of one layer over the number of tokens, and the powers of it that they grow with."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from probattn import CGPAttention, KEPSVGPAttention, KernelAttention, SGPAttention, SoftmaxAttention, SparseCGPAttention
from probattn.attention.base import LayerFactory
from probattn.experiments.bench import memory
from probattn.experiments.bench.meter import Measured, Meter
from probattn.experiments.bench.steps import layer_step

LARGEST = 3
"""How many of the largest sizes an exponent is fitted to."""


class Growth(NamedTuple):
    """A layer, and the powers of N in its time and memory at most, by which sizes that take too much are foreseen."""

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
    """Forward and backward at batch 1.

    Args:
        meter: what it is measured with.
        rounds: timed rounds at each size.
        limit: seconds; a step that would take longer is left out, as is one that needs half of the device's memory.
        sizes: numbers of tokens, ascending.
        dim, heads: of every layer.
        rank, inducing: of KEP-SVGP and of the sparse Gaussian processes.
    """
    layers = {
        "softmax": Growth(SoftmaxAttention, 2, 2),
        "kernel": Growth(KernelAttention, 2, 2),
        "KEP-SVGP add": Growth(KEPSVGPAttention.partial(rank=rank, merge="add"), 1, 1),
        "SGPA": Growth(SGPAttention.partial(inducing=inducing), 2, 2),
        "sparse CGP, collapsed": Growth(SparseCGPAttention.partial(inducing=inducing, collapsed=True), 1, 1),
        "CGP, collapsed": Growth(CGPAttention.partial(collapsed=True), 3, 2),
    }
    found: dict[str, dict[int, Measured]] = {name: {} for name in layers}
    reasons: dict[str, dict[int, str]] = {name: {} for name in layers}
    for size in sizes:
        cases = {}
        for name, growth in layers.items():
            reason = foreseen(growth, found[name], size, limit=limit, memory_limit=memory.total(meter.device) / 2)
            if reason:
                reasons[name][size] = reason
            else:
                cases[name] = layer_step(growth.factory, dim, heads, batch=1, tokens=size, device=meter.device)
        for name, measured in meter.measure(cases, rounds=rounds).items():
            found[name][size] = measured
    sections = [
        {"title": name, "rounds": rounds, "rows": _rows(meter, found[name], reasons[name], found["softmax"])}
        | {"exponents": exponents(found[name])}
        for name in layers
    ]
    title = f"forward + backward, batch 1, dim {dim}, {heads} heads, rank {rank}, {inducing} inducing inputs, float32"
    return {"title": title, "sections": sections}


def foreseen(growth: Growth, found: dict[int, Measured], size: int, *, limit: float, memory_limit: float) -> str:
    """Why a size is left out, judged by the largest one that was measured; empty where it is not."""
    if not found:
        return ""
    largest = max(found)
    times = size / largest
    seconds = np.median(found[largest].seconds).item() * times**growth.time
    peak = found[largest].peak * times**growth.memory
    if seconds > limit:
        return f"left out: {seconds:.1f} s foreseen"
    return f"left out: {peak / 2**30:.1f} GiB foreseen" if peak > memory_limit else ""


def exponents(found: dict[int, Measured]) -> dict[str, float]:
    """Powers of N in time and memory, by least squares over the largest sizes; none of a single size."""
    sizes = sorted(found)[-LARGEST:]
    if len(sizes) < 2:
        return {}
    figures = [(np.median(found[size].seconds), found[size].peak) for size in sizes]
    time, peak = np.polyfit(np.log(sizes), np.log(figures), 1)[0].tolist()
    return {"time": time, "memory": peak}


def _rows(
    meter: Meter, found: dict[int, Measured], reasons: dict[int, str], softmax: dict[int, Measured]
) -> list[dict[str, Any]]:
    """A row a size, relative to softmax attention of that size."""
    measured = [
        meter.row(f"N {size}", each, f"softmax, N {size}", softmax.get(size)) | {"tokens": size}
        for size, each in found.items()
    ]
    return measured + [{"case": f"N {size}", "tokens": size, "left_out": why} for size, why in reasons.items()]
