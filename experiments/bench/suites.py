"""The benchmarks of BENCHMARKS.md; each yields its sections as they are measured."""

import functools
from collections.abc import Iterator, Sequence

import pandas as pd
import pyro
import torch

from probattn.experiments.bench.measure import measure
from probattn.experiments.bench.steps import layer_step, step
from probattn.experiments.config import presets
from probattn.experiments.data.images.image_datasets import ImageDataset, Images
from probattn.experiments.runs.build import build, loaders
from probattn.inference import ELBOLoss, predict
from probattn.models import layer_factories

# Cases of the layers' records by title.
LAYERS = {
    title: record.factory(**options)
    for record in layer_factories.LAYERS.values()
    for title, options in record.bench.items()
}
# Layers whose steps grow linearly with the number of tokens, after softmax, whose kernel is fast.
LINEAR = ("softmax", "KEP-SVGP add", "anchored", "RFF-GPA", "sparse CGP, collapsed")
# Layers and the shapes in which they are measured, the first one as the reference, by suite.
WIDE_ONLY = ("KEP-SVGP concat", "KEP-SVGP add")
WIDE, NARROW = {"dim": 384, "heads": 12}, {"dim": 128, "heads": 4}
SHAPES = {
    "layers": (
        (
            ("softmax", "KEP-SVGP concat", "KEP-SVGP add", "anchored"),
            WIDE | {"batch": 128, "tokens": 64},
        ),
        (("softmax", "KEP-SVGP add", "anchored"), WIDE | {"batch": 1, "tokens": 4096}),
        (("softmax", "KEP-SVGP add", "anchored"), WIDE | {"batch": 1, "tokens": 16384}),
        (
            tuple(title for title in LAYERS if title not in WIDE_ONLY),
            NARROW | {"batch": 25, "tokens": 64},
        ),
    ),
    "scaling": (
        ((*LINEAR, "kernel", "SGPA", "CGP, collapsed"), NARROW | {"batch": 1, "tokens": 256}),
        ((*LINEAR, "kernel", "SGPA", "CGP, collapsed"), NARROW | {"batch": 1, "tokens": 1024}),
        ((*LINEAR, "kernel", "SGPA"), NARROW | {"batch": 1, "tokens": 4096}),
        (
            LINEAR,
            NARROW | {"batch": 1, "tokens": 16384},
        ),  # a step of others takes more than ten seconds
    ),
}
NETWORKS = {"softmax": "kep-svgp/cifar10-softmax", "KEP-SVGP": "kep-svgp/cifar10"}


def layers(
    suite: str, *, rounds: int, device: str, changes: Sequence[str] = ()
) -> Iterator[pd.DataFrame]:
    """Yield forward and backward of one layer in each of :data:`SHAPES`, relative to
    scaled-dot-product attention."""
    for names, shape in SHAPES[suite]:
        cases = {name: layer_step(LAYERS[name], device=device, **shape) for name in names}
        yield measure(
            ", ".join(map("{} {}".format, shape, shape.values())),
            cases,
            rounds=rounds,
            device=device,
        )


def vit(*, rounds: int, device: str, changes: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
    """Yield training steps of the ViT of CIFAR-10, relative to softmax attention, and predictions
    by ten samples.

    These are relative to a deterministic forward pass of the softmax network.
    """
    changes, dataset = [f"train.accelerator={device}", *changes], random_images(512)
    networks = {
        name: presets.preset(preset).with_changes(changes) for name, preset in NETWORKS.items()
    }
    x, y = next(iter(loaders(networks["softmax"], dataset, device=device)[0]))
    models = {name: build(settings, dataset) for name, settings in networks.items()}
    steps = {
        name: step(ELBOLoss(model, guide).to(device).train(), x, y)
        for name, (model, guide) in models.items()
    }
    with pyro.validation_enabled(False):
        yield measure("training step of the preset's ViT", steps, rounds=rounds, device=device)
    network = models["softmax"][0].network.eval()
    cases = {
        "softmax, deterministic": torch.no_grad()(lambda: network(x)),
        "KEP-SVGP, 10 samples": lambda: predict(*models["KEP-SVGP"], x, num_samples=10),
    }
    yield measure("prediction of a batch", cases, rounds=rounds, device=device)


SUITES = {name: functools.partial(layers, name) for name in SHAPES} | {"vit": vit}


def random_images(number: int) -> ImageDataset:
    """Return random images in the form of CIFAR-10, augmented in training."""
    pixels = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8)
    images, half = Images(pixels, torch.randint(10, (number,))), (0.5, 0.5, 0.5)
    return ImageDataset(
        "noise", tuple("0123456789"), images, images, images, mean=half, std=half, augment=True
    )
