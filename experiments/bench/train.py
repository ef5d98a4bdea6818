"""One training step of a ViT, KEP-SVGP in its last layer, by SVI and by a loop without Pyro."""

import copy
from typing import Any

import pyro
import torch
from torch import Tensor

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.attention.base import LayerFactory
from probattn.experiments.bench import reference_loop
from probattn.experiments.bench.meter import Meter
from probattn.experiments.bench.steps import svi_step, training_step
from probattn.experiments.bench.timing import Step
from probattn.models import Classifier, ViT, last


def cifar10(
    meter: Meter, *, rounds: int, dim: int = 384, depth: int = 7, heads: int = 12, rank: int = 10, batch: int = 128
) -> dict[str, Any]:
    """The CIFAR-10 ViT with KEP-SVGP beside the one with softmax attention alone.

    Args:
        meter: what it is measured with.
        rounds: timed rounds.
        dim, depth, heads, rank: of the network, whose hidden width is ``dim``.
        batch: number of images.
    """
    x, y = made_up(batch, meter.device)
    cases = {}
    for name, attention in (("softmax", SoftmaxAttention), ("KEP-SVGP", kep_svgp(rank))):
        model = vit(attention, dim=dim, depth=depth, heads=heads, mlp_dim=dim).to(meter.device)
        cases |= {f"{name}, {way}": step for way, step in both_ways(model, x, y).items()}
    return _table(meter, cases, rounds, dim, depth, heads, batch)


def small(
    meter: Meter, *, rounds: int, dim: int = 64, depth: int = 4, heads: int = 4, rank: int = 10, batch: int = 32
) -> dict[str, Any]:
    """A ViT so small that what Pyro costs counts.

    Args:
        meter: what it is measured with.
        rounds: timed rounds.
        dim, depth, heads, rank: of the network, whose hidden width is ``2 · dim``.
        batch: number of images.
    """
    x, y = made_up(batch, meter.device)
    model = vit(kep_svgp(rank), dim=dim, depth=depth, heads=heads, mlp_dim=2 * dim).to(meter.device)
    ways = both_ways(model, x, y)
    cases = {f"KEP-SVGP, {way}": ways[way] for way in ("by hand", "SVI")}
    return _table(meter, cases, rounds, dim, depth, heads, batch)


def both_ways(model: Classifier, x: Tensor, y: Tensor) -> dict[str, Step]:
    """The training step of a model by SVI, and that of a copy of it by hand."""
    guide = guides.for_model(model)
    twin, its_guide = copy.deepcopy((model, guide))
    loss = reference_loop.loss(twin.train(), its_guide)
    parameters = [*twin.parameters(), *its_guide.parameters()]
    return {
        "SVI": svi_step(model, guide, x, y),
        "by hand": training_step(lambda: loss(x, y), parameters),
    }


def vit(attention: LayerFactory, *, depth: int, **shape: int) -> Classifier:
    """A model of 45,000 labelled 32×32 images in 64 tokens, with softmax attention below the last layer."""
    layers = last(1, attention, of=depth)
    network = ViT(image_size=32, patch_size=4, classes=10, depth=depth, dropout=0.1, attention=layers, **shape)
    return Classifier(network, num_data=45_000)


def kep_svgp(rank: int) -> LayerFactory:
    """KEP-SVGP attention as on CIFAR-10."""
    return KEPSVGPAttention.partial(rank=rank, merge="concat", tokens=64, eta=10.0)


def made_up(batch: int, device: str) -> tuple[Tensor, Tensor]:
    """Images and labels of noise."""
    return torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)


def _table(meter: Meter, cases: dict[str, Step], rounds: int, dim: int, depth: int, heads: int, batch: int) -> dict:
    title = f"training step, {depth}-layer ViT, dim {dim}, {heads} heads, batch {batch}, 64 tokens, float32"
    with pyro.validation_enabled(False):
        sections = [meter.section("Pyro's validation off", cases, rounds=rounds)]
    return {"title": title, "sections": sections}
