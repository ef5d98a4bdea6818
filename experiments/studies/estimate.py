"""Time that runs will take on this machine: seconds of a few training steps and predictions, times their number."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from probattn.experiments.config.settings import Settings
from probattn.experiments.runs.build import Dataset, build, find_device, load_data, loaders
from probattn.inference import fit, predict

STEPS = 2
"""Training steps that are measured, after as many that are not."""


@dataclass(frozen=True)
class Speed:
    """Measured seconds of a phase of a run, in one thread.

    Args:
        step: seconds of a training step.
        example: seconds of the posterior predictive of one example.
    """

    step: float
    example: float


@dataclass(frozen=True)
class RunTime:
    """Seconds of a run, from the start, of its training and of predictions on one test set."""

    epoch: float
    first_epoch: float
    first_epochs: int
    epochs: int
    test_set: float

    def seconds(self, *, epochs_done: int = 0, test_sets: float = 1) -> float:
        """Return the seconds of the epochs that are not done and of the predictions on ``test_sets`` test sets."""
        first = 0 if epochs_done else self.first_epochs
        return self.first_epoch * first + self.epoch * (self.epochs - epochs_done) + self.test_set * test_sets


def run_time(settings: Settings, root: Path | None) -> RunTime:
    """Measure a run of these settings.

    Raises:
        DatasetError: its data are missing.
    """
    dataset = load_data(settings, root)
    steps = math.ceil(len(dataset.train) / settings.data.batch_size)

    def epoch(speed: Speed) -> float:
        return steps * speed.step + len(dataset.valid) * speed.example

    main = measure(replace(settings, warm_start=None), dataset)
    first = measure(settings.first_phase(), dataset) if settings.warm_start else main
    return RunTime(
        epoch=epoch(main),
        first_epoch=epoch(first),
        first_epochs=settings.warm_start.epochs if settings.warm_start else 0,
        epochs=settings.train.epochs,
        test_set=len(dataset.test) * main.example,
    )


def measure(settings: Settings, dataset: Dataset) -> Speed:
    """Train a few steps on random examples and predict as many, in one thread."""
    number = min(STEPS * settings.data.batch_size, len(dataset.train))
    chosen = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))[:number]
    few = replace(dataset, train=dataset.train.select(chosen))
    options = replace(settings.train, epochs=2, warmup_epochs=0, patience=None)
    with _one_thread(), torch.random.fork_rng(devices=[]):
        model, guide = build(settings, few)
        batches = loaders(settings, few, device=find_device(options.accelerator)).train
        history = fit(model, guide, batches, options=options, progress=False)
        started = time.perf_counter()
        predict(model, guide, batches, num_samples=options.num_samples)
        predicted = time.perf_counter() - started
    return Speed(history.epochs[-1]["seconds"] / len(batches), predicted / number)


def in_words(seconds: float) -> str:
    """Return a duration as ``about 14 h``, with the unit that a person would use."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"about {seconds / length:.0f} {unit}"
    return f"about {max(1, round(seconds))} s"


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
