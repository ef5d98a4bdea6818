"""Training one setting with several seeds."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.runs import train as runs
from probattn.experiments.runs.train import Say
from probattn.experiments.runs.workers import run_in_workers
from probattn.inference import History


def check_seedless(changes: Sequence[str]) -> None:
    """Check that changes of settings leave the seed alone.

    Raises:
        SettingsError: ``train.seed`` is among them.
    """
    if any(change.startswith("train.seed=") for change in changes):
        raise SettingsError("the seeds are 0, 1, …: use --seeds N in place of train.seed")


def train_seeds(
    settings: Settings, out: Path, *, seeds: int, workers: int = 1, say: Say = runs.silent, **options: Any
) -> list[History]:
    """Train one run for each seed 0, 1, … into ``out/seed-0``, …, and return their histories in that order.

    Args:
        settings: settings of the runs; their seed is replaced.
        out: folder of the run folders.
        seeds: number of seeds.
        workers: number of runs at a time. Several run in processes of one thread each, without a progress bar.
        say: called with lines of text.
        options: ``name``, ``root`` and ``resume`` of :func:`~probattn.experiments.runs.train.train`.

    Raises:
        FileExistsError: a folder holds other files, or a run while ``resume`` is False.
        Exception: as for ``train``.
    """
    jobs = [(replace(settings, train=replace(settings.train, seed=n)), out / f"seed-{n}") for n in range(seeds)]
    for job in jobs:
        runs.check(*job, resume=options.get("resume", False))
    results = ((job, _train(job, options | {"say": say})) for job in jobs)
    if workers > 1:
        results = run_in_workers(partial(_train, options=options | {"progress": False}), jobs, workers=workers)
    histories = {}
    with contextlib.closing(results):
        for (run_settings, folder), history in results:
            histories[folder] = history
            say(f"{folder.name}, {len(histories)} of {seeds}: {best_epoch(run_settings, history)}")
    return [histories[folder] for _, folder in jobs]


def best_epoch(settings: Settings, history: History) -> str:
    """Return the best epoch of a run, with its value on the validation part, in words."""
    value = "none" if history.best_value is None else f"{history.best_value:.4f}"
    best = f"best epoch {history.best_epoch} of {len(history.epochs)}"
    return f"{best}, valid {settings.train.monitor or 'nll'} {value}"


def _train(job: tuple[Settings, Path], options: dict[str, Any]) -> History:
    return runs.train(*job, **options)
