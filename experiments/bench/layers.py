"""Benchmark of forward and backward of one layer, including its ELBO terms, and of softmax attention."""

from functools import partial
from typing import Any

from probattn import CGPAttention, KEPSVGPAttention, KernelAttention, SGPAttention, SoftmaxAttention, SparseCGPAttention
from probattn.experiments.bench.meter import Meter
from probattn.experiments.bench.steps import layer_step

FEW = 3
"""Maximum number of rounds where a step takes seconds."""


def kep_svgp(
    meter: Meter,
    *,
    rounds: int,
    dim: int = 384,
    heads: int = 12,
    rank: int = 10,
    batch: int = 128,
    tokens: int = 64,
    long: int = 4096,
    longer: int = 16384,
) -> dict[str, Any]:
    """Measure KEP-SVGP on a batch of short sequences, on a ``long`` and on a ``longer`` one, in fewer rounds."""
    case = partial(layer_step, dim=dim, heads=heads, device=meter.device)
    add = KEPSVGPAttention.partial(rank=rank, merge="add")
    factories = {
        "softmax": SoftmaxAttention,
        "KEP-SVGP concat": KEPSVGPAttention.partial(rank=rank, merge="concat", tokens=tokens),
        "KEP-SVGP add": add,
    }
    short = {name: case(factory, batch=batch, tokens=tokens) for name, factory in factories.items()}
    sections = [meter.section(f"batch {batch}, N {tokens}", short, rounds=rounds)]
    for number, limit in ((long, rounds), (longer, min(rounds, FEW))):
        one = {name: case(factories[name], batch=1, tokens=number) for name in ("softmax", "KEP-SVGP add")}
        sections += [meter.section(f"batch 1, N {number}", one, rounds=limit)]
    growth = {f"N {number}": case(add, batch=1, tokens=number) for number in (long, longer)}
    sections += [meter.section("KEP-SVGP add, batch 1", growth, rounds=rounds)]
    return {"title": f"forward + backward, dim {dim}, {heads} heads, rank {rank}, float32", "sections": sections}


def gaussian_processes(
    meter: Meter,
    *,
    rounds: int,
    dim: int = 128,
    heads: int = 4,
    inducing: int = 16,
    batch: int = 25,
    tokens: int = 64,
    long: int = 2048,
    longer: int = 8192,
) -> dict[str, Any]:
    """Measure kernel attention, SGPA and both CGPs, and the growth of the sparse CGP between two long sequences.

    Arguments are those of :func:`kep_svgp`, with ``inducing`` inducing inputs.
    """
    sparse = SparseCGPAttention.partial(inducing=inducing)
    factories = {
        "softmax": SoftmaxAttention,
        "kernel": KernelAttention,
        "SGPA, marginal samples": SGPAttention.partial(inducing=inducing),
        "SGPA, joint samples": SGPAttention.partial(inducing=inducing, draws="joint"),
        "sparse CGP": sparse,
        "sparse CGP, collapsed": SparseCGPAttention.partial(inducing=inducing, collapsed=True),
        "CGP": CGPAttention,
        "CGP, collapsed": CGPAttention.partial(collapsed=True),
        "CGP, collapsed, mean, no R": CGPAttention.partial(collapsed=True, output="mean", alpha=0.0),
    }

    case = partial(layer_step, dim=dim, heads=heads, device=meter.device)
    short = {name: case(factory, batch=batch, tokens=tokens) for name, factory in factories.items()}
    growth = {f"N {number}": case(sparse, batch=1, tokens=number) for number in (long, longer)}
    sections = [meter.section(f"batch {batch}, N {tokens}", short, rounds=rounds)]
    sections += [meter.section("sparse CGP, batch 1", growth, rounds=rounds)]
    title = f"forward + backward, dim {dim}, {heads} heads, {inducing} inducing inputs, float32"
    return {"title": title, "sections": sections}
