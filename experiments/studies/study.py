"""Studies: presets over seeds, trained and evaluated by several methods, under shift and on OOD images; resumable."""

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
    """A run of a study, in its own folder."""

    preset: str
    seed: int
    epochs: int | None
    folder: Path
    changes: tuple[str, ...] = ()
    root: Path | None = field(default=None, kw_only=True)


def plan(
    names: Sequence[str],
    *,
    seeds: int,
    epochs: int | None,
    out: Path,
    changes: Sequence[str] = (),
    root: Path | None = None,
) -> list[Job]:
    """Return the runs of a study: all presets with the first seed, then with the next.

    Args:
        names: presets.
        seeds: number of runs of each preset.
        epochs: epochs of each run, warm start included; None takes the preset's.
        out: folder of the runs, ``PRESET/seed-SEED``.
        changes: changed settings, ``key=value``.
        root: folder of the data sets.

    Raises:
        SettingsError: an unknown preset, or changes that are invalid or set the seed.
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


def run_study(
    jobs: Sequence[Job], *, by: Sequence[str] = METHODS, workers: int, say: Callable[[str], None] = lambda text: None
) -> None:
    """Train and evaluate the runs, several at a time with one thread each; a stopped study keeps what is done.

    Args:
        jobs: the runs.
        by: methods in addition to the posterior predictive.
        workers: number of processes.
        say: called with a message after each run.

    Raises:
        Exception: the first one of a run; runs that have not started are skipped.
    """
    by = tuple(map(methods.check, by))
    finished = run_in_workers(functools.partial(run_job, by=by), jobs, workers=workers)
    for number, (job, accuracy) in enumerate(finished, 1):
        say(f"{number} of {len(jobs)}: {job.preset}, seed {job.seed}, test accuracy {100 * accuracy:.2f} %")


def run_job(job: Job, by: Sequence[str]) -> float:
    """Train, or resume, and evaluate a run, on images also under shift and on OOD images; return its accuracy."""
    settings = presets.preset(job.preset).with_changes([*job.changes, f"train.seed={job.seed}"])
    settings = settings if job.epochs is None else settings.with_total_epochs(job.epochs)
    train.train(settings, job.folder, name=job.preset, root=job.root, resume=True, progress=False)
    images = isinstance(settings.network, ViTSettings)
    ood = ("default",) if images else ()
    evaluation = evaluate(job.folder, root=job.root, by=by, shift=images, severities=SEVERITIES, ood=ood)
    return evaluation.result.metrics["accuracy"]
