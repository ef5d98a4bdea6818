"""Studies: presets over seeds, trained and evaluated by several methods, under shift and on OOD images; resumable."""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from probattn.experiments.config import presets
from probattn.experiments.config.settings import Settings
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.runs import train
from probattn.experiments.runs.seeds import check_seedless
from probattn.experiments.runs.workers import run_in_workers

SEVERITIES = (1, 3, 5)
METHODS = ("temperature", "mc-dropout", "laplace", "sv-dkl")
MAX_NAME = 120
"""Maximum length of the name of a folder for own changes; longer ones end with a digest."""


@dataclass(frozen=True)
class Job:
    """A run of a study, in its own folder; ``own`` are the changes of its preset alone, after those of all."""

    preset: str
    seed: int
    epochs: int | None
    folder: Path
    changes: tuple[str, ...] = ()
    own: tuple[str, ...] = field(default=(), kw_only=True)
    root: Path | None = field(default=None, kw_only=True)

    @property
    def settings(self) -> Settings:
        """Settings of the run.

        Raises:
            SettingsError: an unknown preset, or invalid changes.
        """
        changes = [*self.changes, *self.own, f"train.seed={self.seed}"]
        settings = presets.preset(self.preset).with_changes(changes)
        return settings if self.epochs is None else settings.with_total_epochs(self.epochs)


def plan(
    names: Sequence[str],
    *,
    seeds: int,
    epochs: int | None,
    out: Path,
    changes: Sequence[str] = (),
    own: Mapping[str, Sequence[str]] | None = None,
    root: Path | None = None,
) -> list[Job]:
    """Return the runs of a study: all presets with the first seed, then with the next.

    Args:
        names: presets.
        seeds: number of runs of each preset.
        epochs: epochs of each run, warm start included; None takes the preset's.
        out: folder of the runs, ``PRESET/seed-SEED``.
        changes: changed settings, ``key=value``.
        own: preset → further changes of its runs, which are in ``PRESET/KEY=VALUE,…/seed-SEED``.
        root: folder of the data sets.

    Raises:
        SettingsError: an unknown preset, or changes that are invalid or set the seed.
    """
    own = {name: tuple((own or {}).get(name, ())) for name in names}
    folders = {}
    for name, further in own.items():
        check_seedless([*changes, *further])
        settings = presets.preset(name).with_changes([*changes, *further])
        folders[name] = out / name / _folder_name(settings, further) if further else out / name
    return [
        Job(name, seed, epochs, folder / f"seed-{seed}", tuple(changes), own=own[name], root=root)
        for seed in range(seeds)
        for name, folder in folders.items()
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
        Exception: the first one of a run; the others are stopped, and continue when the study does.
    """
    by = tuple(map(methods.check, by))
    with contextlib.closing(run_in_workers(functools.partial(run_job, by=by), jobs, workers=workers)) as finished:
        for number, (job, accuracy) in enumerate(finished, 1):
            say(f"{number} of {len(jobs)}: {job.preset}, seed {job.seed}, test accuracy {100 * accuracy:.2f} %")


def run_job(job: Job, by: Sequence[str]) -> float:
    """Train, or resume, and evaluate a run, on images also under shift and on OOD images; return its accuracy."""
    settings = job.settings
    train.train(settings, job.folder, name=job.preset, root=job.root, resume=True, progress=False)
    images = settings.network.kind == "vit"
    ood = ("default",) if images else ()
    evaluation = evaluate(job.folder, root=job.root, by=by, shift=images, severities=SEVERITIES, ood=ood)
    return evaluation.result.metrics["accuracy"]


def _folder_name(settings: Settings, changes: Sequence[str]) -> str:
    """Return the changed settings as the name of a folder: the same in any order, and for 1 and 1.0."""
    flat, keys = settings.flat(), sorted({change.partition("=")[0] for change in changes})
    name = ",".join(f"{key}={quote(_text(flat.get(key)), safe='')}" for key in keys)
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _text(value: object) -> str:
    """Return the value of a setting as ``--set`` takes it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
