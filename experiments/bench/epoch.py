"""Whole epochs of a preset by ``fit``, beside its softmax twin, on made-up images that already lie on the device."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from probattn.experiments.bench.meter import Measured, Meter
from probattn.experiments.config import presets
from probattn.experiments.config.settings import Settings, SettingsError, ViTSettings
from probattn.experiments.data.images.datasets import ImageDataset
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.runs import train
from probattn.inference import fit

DEFAULT_IMAGES = {"cpu": 512, "cuda": 45_000}
_EPOCHS = 3
"""Epochs of a run, of which the first warms up."""


def twins(name: str, changes: Sequence[str], *, device: str) -> dict[str, Settings]:
    """The settings of a preset's softmax twin and its own, by name, for a few epochs on the device.

    Args:
        name: a preset of images.
        changes: ``key=value`` settings of both.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        SettingsError: an unknown preset, one of texts, or one that is a twin itself; a change that does not fit.
    """
    both = {each: presets.preset(each) for each in (presets.twin(name), name) if each is not None}
    if len(both) < 2 or not isinstance(both[name].network, ViTSettings):
        raise SettingsError(f"{name} is no preset of images with a softmax twin beside it; take kep-svgp/cifar10")
    given = [f"train.accelerator={device}", "warm_start=none", *changes]
    return {each: settings.with_changes(given).with_total_epochs(_EPOCHS) for each, settings in both.items()}


def epoch(meter: Meter, *, rounds: int, both: dict[str, Settings], images: int | None = None) -> dict[str, Any]:
    """Time of an epoch, loading and augmentation included, without validation.

    Args:
        meter: what it is measured with.
        rounds: runs of each, which take turns.
        both: settings by name, of :func:`twins`.
        images: 32×32 colour images of an epoch; by default as many as CIFAR-10 has on a GPU, few on a CPU.
    """
    images = DEFAULT_IMAGES[meter.device] if images is None else images
    dataset = made_up(images)
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(rounds):
        for name, settings in both.items():
            seconds[name] += epochs(settings, dataset, meter.device)[1:]
    rows = meter.rows({name: Measured(times) for name, times in seconds.items()})
    section = {"title": f"{images} images", "rounds": rounds * (_EPOCHS - 1), "rows": rows}
    settings = {name: each.flat() for name, each in both.items()}
    return {"title": "an epoch of training by fit", "sections": [section], "settings": settings}


def epochs(settings: Settings, dataset: ImageDataset, device: str) -> list[float]:
    """Seconds of each epoch of a run from its start."""
    model, guide = train.build(settings, dataset)
    batches = train.loaders(settings, dataset, device=device).train
    history = fit(model, guide, batches, progress=False, **asdict(settings.train))
    return [record["seconds"] for record in history.epochs]


def made_up(number: int) -> ImageDataset:
    """Noise in the form of CIFAR-10, augmented in training."""
    pixels = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.randint(10, (number,)))
    one = images.select(torch.tensor([0]))
    half = (0.5, 0.5, 0.5)
    return ImageDataset("noise", tuple("0123456789"), images, one, one, mean=half, std=half, augment=True)
