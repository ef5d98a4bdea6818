"""Benchmark of a training step of a ViT with KEP-SVGP in its last layer, by SVI and by the reference loop."""

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
    """Measure the CIFAR-10 ViT, with MLPs of width ``dim``, with KEP-SVGP and with softmax attention alone."""
    x, y = random_batch(batch, meter.device)
    cases = {}
    for name, attention in (("softmax", SoftmaxAttention), ("KEP-SVGP", kep_svgp(rank))):
        model = vit(attention, dim=dim, depth=depth, heads=heads, mlp_dim=dim).to(meter.device)
        cases |= {f"{name}, {way}": step for way, step in step_variants(model, x, y).items()}
    return _table(meter, cases, rounds, describe(dim, depth, heads, batch))


def small(
    meter: Meter, *, rounds: int, dim: int = 64, depth: int = 4, heads: int = 4, rank: int = 10, batch: int = 32
) -> dict[str, Any]:
    """Measure a ViT, with MLPs of width ``2 · dim``, so small that the overhead of Pyro matters."""
    x, y = random_batch(batch, meter.device)
    model = vit(kep_svgp(rank), dim=dim, depth=depth, heads=heads, mlp_dim=2 * dim).to(meter.device)
    ways = step_variants(model, x, y)
    cases = {f"KEP-SVGP, {way}": ways[way] for way in ("reference loop", "SVI")}
    return _table(meter, cases, rounds, describe(dim, depth, heads, batch))


def step_variants(model: Classifier, x: Tensor, y: Tensor) -> dict[str, Step]:
    """Return the training step of a model by SVI, and that of a copy of it by the reference loop."""
    guide = guides.for_model(model)
    model_copy, guide_copy = copy.deepcopy((model, guide))
    loss = reference_loop.loss(model_copy.train(), guide_copy)
    parameters = [*model_copy.parameters(), *guide_copy.parameters()]
    return {"SVI": svi_step(model, guide, x, y), "reference loop": training_step(lambda: loss(x, y), parameters)}


def vit(attention: LayerFactory, *, depth: int, **shape: int) -> Classifier:
    """Build a model of 45,000 labelled 32×32 images in 64 tokens, with softmax attention below the last layer."""
    layers = last(1, attention, of=depth)
    network = ViT(image_size=32, patch_size=4, classes=10, depth=depth, dropout=0.1, attention=layers, **shape)
    return Classifier(network, num_data=45_000)


def kep_svgp(rank: int) -> LayerFactory:
    """Return KEP-SVGP attention as on CIFAR-10."""
    return KEPSVGPAttention.partial(rank=rank, merge="concat", tokens=64, eta=10.0)


def random_batch(batch: int, device: str) -> tuple[Tensor, Tensor]:
    """Return random images and labels."""
    return torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)


def describe(dim: int, depth: int, heads: int, batch: int) -> str:
    """Describe a network and its batch for a title."""
    return f"{depth}-layer ViT, dim {dim}, {heads} heads, batch {batch}, 64 tokens, float32"


def _table(meter: Meter, cases: dict[str, Step], rounds: int, network: str) -> dict[str, Any]:
    with pyro.validation_enabled(False):
        sections = [meter.section("Pyro's validation off", cases, rounds=rounds)]
    return {"title": f"training step, {network}", "sections": sections}
