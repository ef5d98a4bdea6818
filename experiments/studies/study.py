"""A whole comparison by one command: presets and seeds, every method, shift and foreign images, resumable."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from probattn.experiments.config import presets
from probattn.experiments.config.networks import ViTSettings
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.runs import train
from probattn.experiments.runs.seeds import check_seedless
from probattn.experiments.runs.workers import run_in_workers

SEVERITIES = (1, 3, 5)
METHODS = ("temperature", "mc-dropout", "laplace", "sv-dkl")


@dataclass(frozen=True)
class Job:
    """One run of a study, in a folder of its own."""

    preset: str
    seed: int
    epochs: int | None
    folder: Path
    changes: tuple[str, ...] = ()
    root: Path | None = field(default=None, kw_only=True)


def jobs(
    names: Sequence[str],
    *,
    seeds: int,
    epochs: int | None,
    out: Path,
    changes: Sequence[str] = (),
    root: Path | None = None,
) -> list[Job]:
    """The runs of a study, all presets of one seed after another.

    Args:
        names: of presets.
        seeds: runs of each.
        epochs: of each run, warm starts included; None: the preset's own.
        out: gets a folder ``PRESET/seed-SEED`` for each.
        changes: of settings, ``key=value``.
        root: where data sets lie.

    Raises:
        SettingsError: an unknown preset, or changes that do not fit or fix the seed.
    """
    names = tuple(dict.fromkeys(names))
    for name in names:
        presets.preset(name).with_changes(changes)
    check_seedless(changes)
    return [
        Job(name, seed, epochs, out / name / f"seed-{seed}", tuple(changes), root=root)
        for seed in range(seeds)
        for name in names
    ]


def study(
    todo: Sequence[Job], *, by: Sequence[str] = METHODS, workers: int, say: Callable[[str], None] = lambda text: None
) -> None:
    """Trains and evaluates the runs, several at a time, each on one thread; what a stopped study has done is kept.

    Args:
        todo: the runs.
        by: methods beside the posterior predictive.
        workers: processes.
        say: is told when a run is done.

    Raises:
        Exception: the first that a run raises; runs that have not begun are left undone.
    """
    by = tuple(map(methods.check, by))
    finished = run_in_workers(functools.partial(work, by=by), todo, workers=workers)
    for number, (job, accuracy) in enumerate(finished, 1):
        say(f"{number} of {len(todo)}: {job.preset}, seed {job.seed}, test accuracy {100 * accuracy:.2f} %")


def work(job: Job, by: Sequence[str]) -> float:
    """Trains and evaluates one run, or the rest of it, images also corrupted and beside foreign ones; its accuracy."""
    settings = presets.preset(job.preset).with_changes([*job.changes, f"train.seed={job.seed}"])
    settings = settings if job.epochs is None else settings.with_total_epochs(job.epochs)
    train.train(settings, job.folder, name=job.preset, root=job.root, resume=True, progress=False)
    images = isinstance(settings.network, ViTSettings)
    foreign = ("default",) if images else ()
    done = evaluate(job.folder, root=job.root, by=by, shift=images, severities=SEVERITIES, ood=foreign)
    return done.result.metrics["accuracy"]
