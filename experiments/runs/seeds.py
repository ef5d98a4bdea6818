"""Training one setting with several seeds."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.runs import train as runs
from probattn.experiments.runs.workers import run_in_workers
from probattn.inference import History


@dataclass(frozen=True)
class _Job:
    """Arguments of :func:`probattn.experiments.runs.train.train` for one seed."""

    settings: Settings
    folder: Path
    name: str
    root: Path | None
    resume: bool


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
    """Train one run per seed 0, 1, …, each in a folder of its own.

    Args:
        settings: settings of the runs; their seed is replaced.
        out: folder that gets the run folders ``seed-0``, ….
        seeds: number of seeds.
        name, root, resume, say: as for :func:`~probattn.experiments.runs.train.train`.
        workers: number of runs at a time. Several are trained in processes of one thread each, without a progress bar.

    Returns:
        The history of each run, in the order of the seeds.

    Raises:
        FileExistsError: one of the folders holds a run and ``resume`` is False, or other files.
        Exception: as for ``train``.
    """
    jobs = []
    for seed in range(seeds):
        own = replace(settings, train=replace(settings.train, seed=seed))
        jobs.append(_Job(own, out / f"seed-{seed}", name, root, resume))
    for job in jobs:
        runs.check(job.settings, job.folder, resume=resume)
    if workers == 1:
        histories = []
        for job in jobs:
            say(f"seed {job.settings.train.seed}")
            histories.append(runs.train(job.settings, job.folder, name=name, root=root, resume=resume, say=say))
        return histories
    finished = {}
    with contextlib.closing(run_in_workers(_train, jobs, workers=workers)) as results:
        for job, history in results:
            finished[job.folder] = history
            say(f"{len(finished)} of {seeds}: seed {job.settings.train.seed}, {len(history.epochs)} epochs")
    return [finished[job.folder] for job in jobs]


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


def _train(job: _Job) -> History:
    return runs.train(job.settings, job.folder, name=job.name, root=job.root, resume=job.resume, progress=False)
