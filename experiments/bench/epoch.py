"""Benchmark of training epochs by ``fit``: a preset and its softmax baseline, on random images on the device."""

from collections.abc import Sequence
from typing import Any

import torch

from probattn.experiments.bench.meter import Measured, Meter
from probattn.experiments.config import presets
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.images.image_datasets import ImageDataset
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.runs.build import build, loaders
from probattn.inference import fit

DEFAULT_IMAGES = {"cpu": 512, "cuda": 45_000}
_EPOCHS = 3
"""Epochs of a run; the first is a warm-up and not counted."""


def twins(name: str, changes: Sequence[str], *, device: str) -> dict[str, Settings]:
    """Return the settings of a preset's softmax baseline and its own, by name, for a few epochs on the device.

    Args:
        name: preset of images.
        changes: ``key=value`` changes of both.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        SettingsError: an unknown preset, one of texts or without a baseline; an invalid change.
    """
    both = {each: presets.preset(each) for each in (presets.twin(name), name) if each is not None}
    if len(both) < 2 or both[name].network.kind != "vit":
        raise SettingsError(f"{name} is not a preset of images with a softmax baseline; use kep-svgp/cifar10")
    changes = [f"train.accelerator={device}", "warm_start=none", *changes]
    return {each: settings.with_changes(changes).with_total_epochs(_EPOCHS) for each, settings in both.items()}


def epoch(meter: Meter, *, rounds: int, both: dict[str, Settings], images: int | None = None) -> dict[str, Any]:
    """Measure the time of an epoch, including loading and augmentation, without validation.

    Args:
        meter: the device.
        rounds: runs of each preset, which take turns.
        both: settings by name, from :func:`twins`.
        images: number of 32×32 colour images of an epoch; default: :data:`DEFAULT_IMAGES` of the device.
    """
    dataset = random_dataset(DEFAULT_IMAGES[meter.device] if images is None else images)
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(rounds):
        for name, settings in both.items():
            seconds[name] += epochs(settings, dataset, meter.device)[1:]
    rows = meter.rows({name: Measured(times) for name, times in seconds.items()})
    section = {"title": f"{len(dataset.train)} images", "rounds": rounds * (_EPOCHS - 1), "rows": rows}
    settings = {name: each.flat() for name, each in both.items()}
    return {"title": "an epoch of training by fit", "sections": [section], "settings": settings}


def epochs(settings: Settings, dataset: ImageDataset, device: str) -> list[float]:
    """Train a run and return the seconds of each epoch."""
    model, guide = build(settings, dataset)
    batches = loaders(settings, dataset, device=device).train
    history = fit(model, guide, batches, options=settings.train, progress=False)
    return [record["seconds"] for record in history.epochs]


def random_dataset(number: int) -> ImageDataset:
    """Return random images in the form of CIFAR-10, augmented in training."""
    pixels = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.randint(10, (number,)))
    one = images.select(torch.tensor([0]))
    half = (0.5, 0.5, 0.5)
    return ImageDataset("noise", tuple("0123456789"), images, one, one, mean=half, std=half, augment=True)
