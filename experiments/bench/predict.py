"""Prediction with the CIFAR-10 ViT beside its deterministic forward."""

from typing import Any

from probattn import SoftmaxAttention, guides
from probattn.experiments.bench.meter import Meter
from probattn.experiments.bench.steps import forward_step
from probattn.experiments.bench.train import kep_svgp, made_up, vit
from probattn.inference import predict


def ten_draws(
    meter: Meter, *, rounds: int, dim: int = 384, depth: int = 7, heads: int = 12, rank: int = 10, batch: int = 128
) -> dict[str, Any]:
    """Ten draws with KEP-SVGP in the last layer beside one forward with softmax attention alone.

    Args:
        meter: what it is measured with.
        rounds: timed rounds.
        dim, depth, heads, rank: of the network, whose hidden width is ``dim``.
        batch: number of images.
    """
    x, _ = made_up(batch, meter.device)
    softmax, model = (
        vit(attention, dim=dim, depth=depth, heads=heads, mlp_dim=dim).to(meter.device)
        for attention in (SoftmaxAttention, kep_svgp(rank))
    )
    guide = guides.for_model(model)
    cases = {
        "softmax, deterministic": forward_step(softmax.network, x),
        "KEP-SVGP, ten draws": lambda: predict(model, guide, x, num_samples=10),
    }
    title = f"prediction, {depth}-layer ViT, dim {dim}, {heads} heads, batch {batch}, 64 tokens, float32"
    return {"title": title, "sections": [meter.section("", cases, rounds=rounds)]}
