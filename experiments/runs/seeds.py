"""Training one setting with several seeds."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.runs import train as runs
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
    settings: Settings,
    out: Path,
    *,
    seeds: int,
    name: str,
    root: Path | None = None,
    resume: bool = False,
    workers: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> list[History]:
    """Train one run for each seed 0, 1, … into ``out/seed-0``, …, and return their histories in that order.

    Args:
        settings: settings of the runs; their seed is replaced.
        out: folder of the run folders.
        seeds: number of seeds.
        name, root, resume, say: as for :func:`~probattn.experiments.runs.train.train`.
        workers: number of runs at a time. Several run in processes of one thread each, without a progress bar.

    Raises:
        FileExistsError: a folder holds other files, or a run while ``resume`` is False.
        Exception: as for ``train``.
    """
    for seed in range(seeds):
        runs.check(*_run(settings, out, seed), resume=resume)
    options = {"name": name, "root": root, "resume": resume}
    histories: dict[int, History] = {}
    if workers == 1:
        for seed in range(seeds):
            say(f"seed {seed}")
            histories[seed] = runs.train(*_run(settings, out, seed), **options, say=say)
        return list(histories.values())
    job = partial(_train, settings, out, options)
    with contextlib.closing(run_in_workers(job, range(seeds), workers=workers)) as results:
        for seed, history in results:
            histories[seed] = history
            say(f"{len(histories)} of {seeds}: seed {seed}, {len(history.epochs)} epochs")
    return [histories[seed] for seed in range(seeds)]


def summary(histories: Sequence[History], settings: Settings) -> str:
    """Format the best epoch and value of each seed, and their mean ± standard deviation.

    Raises:
        SettingsError: a seed has no epoch with a value of the monitored metric.
    """
    monitor, values = settings.train.monitor or "nll", [history.best_value for history in histories]
    if None in values:
        raise SettingsError(f"no epoch had a valid {monitor}: choose another with --set train.monitor=METRIC")
    lines = [
        f"seed {seed}: best epoch {history.best_epoch} of {len(history.epochs)}, valid {monitor} {value:.4f}"
        for seed, (history, value) in enumerate(zip(histories, values, strict=True))
    ]
    if len(values) > 1:
        lines.append(f"valid {monitor} {mean(values):.4f} ± {stdev(values):.4f} over {len(values)} seeds")
    return "\n".join(lines)


def _run(settings: Settings, out: Path, seed: int) -> tuple[Settings, Path]:
    return replace(settings, train=replace(settings.train, seed=seed)), out / f"seed-{seed}"


def _train(settings: Settings, out: Path, options: dict, seed: int) -> History:
    return runs.train(*_run(settings, out, seed), **options, progress=False)
