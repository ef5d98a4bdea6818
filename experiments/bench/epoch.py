"""Whole epochs of a preset by ``fit``, beside its softmax twin, on made-up images that already lie on the device."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from probattn.experiments import presets, runs
from probattn.experiments.bench.meter import Measured, Meter
from probattn.experiments.datasets import ImageDataset
from probattn.experiments.images import Images
from probattn.experiments.settings import Settings
from probattn.inference import fit

DEFAULT_IMAGES = {"cpu": 512, "cuda": 45_000}
_EPOCHS = 3
"""Epochs of a run, of which the first warms up."""


def epoch(
    meter: Meter,
    *,
    rounds: int,
    images: int | None = None,
    name: str = "kep-svgp/cifar10",
    changes: Sequence[str] = (),
) -> dict[str, Any]:
    """Time of an epoch, loading and augmentation included, without validation.

    Args:
        meter: what it is measured with.
        rounds: runs of each network, which take turns.
        images: 32×32 colour images of an epoch; by default as many as CIFAR-10 has on a GPU, few on a CPU.
        name: the preset.
        changes: ``key=value`` settings of both.

    Raises:
        SettingsError: an unknown preset, or one without a twin; a change that does not fit.
    """
    images = images or DEFAULT_IMAGES[meter.device]
    twin = presets.twin(name)
    if twin is None:
        raise presets.SettingsError(f"{name} has no softmax twin to be compared with")
    changes = [f"train.accelerator={meter.device}", "warm_start=none", *changes]
    both = {each: presets.preset(each).with_changes(changes).lasting(_EPOCHS) for each in (twin, name)}
    dataset = made_up(images)
    seconds: dict[str, list[float]] = {each: [] for each in both}
    for _ in range(rounds):
        for each, settings in both.items():
            seconds[each] += epochs(settings, dataset, meter.device)[1:]
    rows = meter.rows({each: Measured(times) for each, times in seconds.items()})
    section = {"title": f"{images} images", "rounds": rounds * (_EPOCHS - 1), "rows": rows}
    return {"title": " ".join(["an epoch of training by fit", *changes[2:]]), "sections": [section]}


def epochs(settings: Settings, dataset: ImageDataset, device: str) -> list[float]:
    """Seconds of each epoch of a run from its start."""
    model, guide = runs.build(settings, dataset)
    batches = runs.loaders(settings, dataset, device=device).train
    history = fit(model, guide, batches, progress=False, **asdict(settings.train))
    return [record["seconds"] for record in history.epochs]


def made_up(number: int) -> ImageDataset:
    """Noise in the form of CIFAR-10, augmented in training."""
    pixels = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8)
    images = Images(pixels, torch.randint(10, (number,)))
    one = images.select(torch.tensor([0]))
    half = (0.5, 0.5, 0.5)
    return ImageDataset("noise", tuple("0123456789"), images, one, one, mean=half, std=half, augment=True)
