"""The benchmarks of BENCHMARKS.md; each yields its sections as they are measured."""

import functools
from collections.abc import Iterator, Sequence

import pandas as pd
import pyro
import torch

from probattn.attention.base import LayerFactory
from probattn.experiments.bench.measure import measure
from probattn.experiments.bench.steps import layer_step, step
from probattn.experiments.config import presets
from probattn.experiments.data.images.image_datasets import ImageDataset, Images, from_parts
from probattn.experiments.runs.build import build, loaders
from probattn.inference import ELBOLoss, predict
from probattn.models.layer_records import LAYERS

# Cases of the layers' records by title.
CASES: dict[str, LayerFactory] = {
    title: record.factory(**options)
    for record in LAYERS.values()
    for title, options in record.bench.items()
}
# Layers whose steps grow linearly with the number of tokens, after softmax, whose kernel is fast.
LINEAR = ("softmax", "kep-svgp", "anchored", "rff-gpa", "sparse-cgp collapsed")
WIDE = {"dim": 384, "heads": 12}
NARROW = {"dim": 128, "heads": 4}


def _one(tokens: int, size: dict[str, int]) -> dict[str, int]:
    """Return the shape of a batch of one example."""
    return size | {"batch": 1, "tokens": tokens}


# Cases and the shape in which they are measured, the first one as the reference, by suite.
SHAPES = {
    "layers": (
        (
            ("softmax", "kep-svgp concat", "kep-svgp", "anchored"),
            WIDE | {"batch": 128, "tokens": 64},
        ),
        (("softmax", "kep-svgp", "anchored"), _one(4096, WIDE)),
        (("softmax", "kep-svgp", "anchored"), _one(16384, WIDE)),
        (tuple(CASES), NARROW | {"batch": 25, "tokens": 64}),
    ),
    "scaling": (
        ((*LINEAR, "kernel", "sgpa", "cgp collapsed"), _one(256, NARROW)),
        ((*LINEAR, "kernel", "sgpa", "cgp collapsed"), _one(1024, NARROW)),
        ((*LINEAR, "kernel", "sgpa"), _one(4096, NARROW)),
        (LINEAR, _one(16384, NARROW)),  # a step of others takes more than ten seconds
    ),
}
NETWORKS = {"softmax": "kep-svgp/cifar10-softmax", "kep-svgp": "kep-svgp/cifar10"}


def layers(
    suite: str,
    *,
    rounds: int,
    device: str,
    changes: Sequence[str] = (),
) -> Iterator[pd.DataFrame]:
    """Yield forward and backward of one layer in each of :data:`SHAPES`, relative to
    scaled-dot-product attention."""
    for names, shape in SHAPES[suite]:
        title = ", ".join(f"{size} {number}" for size, number in shape.items())
        cases = {
            name: layer_step(
                CASES[name],
                device=device,
                **shape,
            )
            for name in names
        }
        yield measure(title, cases, rounds=rounds, device=device)


def vit(
    *,
    rounds: int,
    device: str,
    changes: Sequence[str] = (),
) -> Iterator[pd.DataFrame]:
    """Yield training steps of the ViT of CIFAR-10, relative to softmax attention, and predictions
    by ten samples.

    These are relative to a deterministic forward pass of the softmax network.
    """
    dataset = random_images(512)
    changes = [f"train.accelerator={device}", *changes]
    settings = {name: presets.preset(key).with_changes(changes) for name, key in NETWORKS.items()}
    networks = {name: build(of_network, dataset) for name, of_network in settings.items()}
    loader, _ = loaders(settings["softmax"], dataset, device=device)
    x, y = next(iter(loader))
    steps = {}
    for name, (model, guide) in networks.items():
        module = ELBOLoss(model, guide).to(device).train()
        steps[name] = step(module, x, y)
    with pyro.validation_enabled(False):
        yield measure("training step of the preset's ViT", steps, rounds=rounds, device=device)
    softmax = networks["softmax"][0].network.eval()
    cases = {
        "softmax, deterministic": torch.no_grad()(lambda: softmax(x)),
        "kep-svgp, 10 samples": lambda: predict(*networks["kep-svgp"], x, num_samples=10),
    }
    yield measure("prediction of a batch", cases, rounds=rounds, device=device)


SUITES = {name: functools.partial(layers, name) for name in SHAPES} | {"vit": vit}


def random_images(number: int) -> ImageDataset:
    """Return random images in the form of CIFAR-10, augmented in training."""
    pixels = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.randint(10, (number,)))
    return from_parts("noise", tuple("0123456789"), images, images, images, augment=True)
