"""Benchmark of prediction with the CIFAR-10 ViT."""

from typing import Any

from probattn import SoftmaxAttention, guides
from probattn.experiments.bench.meter import Meter
from probattn.experiments.bench.steps import forward_step
from probattn.experiments.bench.train import describe, kep_svgp, random_batch, vit
from probattn.inference import predict


def ten_samples(
    meter: Meter, *, rounds: int, dim: int = 384, depth: int = 7, heads: int = 12, rank: int = 10, batch: int = 128
) -> dict[str, Any]:
    """Measure prediction with ten posterior samples and KEP-SVGP in the last layer, and a forward pass of softmax."""
    x, _ = random_batch(batch, meter.device)
    softmax, model = (
        vit(attention, dim=dim, depth=depth, heads=heads, mlp_dim=dim).to(meter.device)
        for attention in (SoftmaxAttention, kep_svgp(rank))
    )
    guide = guides.for_model(model)
    cases = {
        "softmax, deterministic": forward_step(softmax.network, x),
        "KEP-SVGP, 10 samples": lambda: predict(model, guide, x, num_samples=10),
    }
    title = f"prediction, {describe(dim, depth, heads, batch)}"
    return {"title": title, "sections": [meter.section("", cases, rounds=rounds)]}
