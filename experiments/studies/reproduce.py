"""Runs of a table or figure of a paper: what is planned, trained and evaluated for it, resumable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from probattn.experiments.config.settings import Settings
from probattn.experiments.data import root as places
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import ood_sets as ood_datasets
from probattn.experiments.data.images.corruptions import STANDARD
from probattn.experiments.data.root import data_root
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.eval_sets import SEVERITIES
from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.evaluation.evaluated_run import EvaluatedRun, check_comparable, read_evaluated_run
from probattn.experiments.evaluation.scores import Scores
from probattn.experiments.evaluation.seed_statistics import MetricsBySeed
from probattn.experiments.runs import train
from probattn.experiments.runs.folder import epochs_done
from probattn.experiments.runs.workers import run_in_workers
from probattn.experiments.studies.collect import ensemble
from probattn.experiments.studies.entries import Entry, Model, Part
from probattn.experiments.studies.estimate import run_time
from probattn.experiments.studies.scales import Scale
from probattn.experiments.studies.scored import value_of
from probattn.inference.imports import MissingExtraError
from probattn.inference.training.run_log import read_log


@dataclass(frozen=True)
class Job:
    """A run with everything that the blocks of an entry need of it."""

    model: Model
    settings: Settings
    folder: Path
    root: Path | None
    by: tuple[str, ...]
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    ood: tuple[str, ...]

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.settings.train.seed or 0


@dataclass(frozen=True)
class Plan:
    """Runs of an entry.

    Args:
        entry: the entry, its blocks at the planned size.
        scale: the size.
        jobs: the runs, all models with the first seed, then with the next.
        missing: data that are missing, in words → titles of the blocks; those without their data set have no runs.
    """

    entry: Entry
    scale: Scale
    jobs: tuple[Job, ...]
    missing: dict[str, tuple[str, ...]]

    def jobs_of(self, model: Model) -> list[Job]:
        """Return the runs of a model by seed."""
        return [job for job in self.jobs if job.model == model]

    @property
    def parts(self) -> list[Part]:
        """Blocks whose data set is there."""
        return [part for part in self.entry.parts if self.jobs_of(next(iter(part.rows.values())).model)]


Look = Callable[[str, Path | None], str]
"""Function that returns in words that a data set is missing, or an empty text."""


def look(name: str, root: Path | None) -> str:
    """Return in words where a missing data set would be found, without a download; an empty text if it is there."""
    return places.missing(name, data_root(root))


def select(entry: Entry, *, blocks: Sequence[str] = (), rows: Sequence[str] = ()) -> Entry:
    """Return an entry with some of its blocks and of their rows, by title and name; all where none are given.

    Raises:
        ValueError: an unknown name; lists the known ones.
    """
    known = {"block": [part.title for part in entry.parts], "row": [*_union(part.rows for part in entry.parts)]}
    for kind, names in (("block", blocks), ("row", rows)):
        unknown = [name for name in names if name not in known[kind]]
        if unknown:
            raise ValueError(f"{entry.name} has no {kind} {', '.join(unknown)}; it has {', '.join(known[kind])}")
    parts = []
    for part in entry.parts:
        chosen = {name: row for name, row in part.rows.items() if not rows or name in rows}
        if chosen and (not blocks or part.title in blocks):
            parts.append(replace(part, rows=chosen, baseline=part.baseline if part.baseline in chosen else ""))
    return replace(entry, parts=tuple(parts))


def plan(
    entry: Entry, *, scale: Scale, seeds: int | None, out: Path, root: Path | None = None, find: Look = look
) -> Plan:
    """Plan the runs of an entry; models that several entries share have one folder.

    Args:
        entry: the table or figure.
        scale: the size.
        seeds: number of seeds; None takes the scale's.
        out: folder of all results; the runs are in ``runs`` or ``runs-SCALE`` there.
        root: folder of the data sets.
        find: how data sets are looked for.
    """
    parts = tuple(map(scale.adapt, entry.parts))
    found = {name: find(name, root) for part in parts for name in (part.data, *part.ood)}
    missing: dict[str, tuple[str, ...]] = {}
    for part in parts:
        for text in filter(None, (found[name] for name in (part.data, *part.ood))):
            missing[text] = (*missing.get(text, ()), part.title)
    needs = {}
    for part in parts:
        for row in part.rows.values() if not found[part.data] else ():
            needs.setdefault(row.model, []).append((part, row.method))
    folder = out / ("runs" if not scale.label else f"runs-{scale.name}")
    jobs = []
    for seed in range(seeds or scale.number_of_seeds(entry)):
        for model, uses in needs.items():
            by = dict.fromkeys(method for _, method in uses if method != methods.POSTERIOR)
            own = folder / model.preset / ",".join(model.changes) / f"seed-{seed}"
            settings, blocks = scale.settings(model, seed=seed), [part for part, _ in uses]
            ood = tuple(name for name in _union(part.ood for part in blocks) if not found[name])
            shift = (_union(part.corruptions for part in blocks), _union(part.severities for part in blocks))
            jobs.append(Job(model, settings, own, root, tuple(by), *shift, ood))
    return Plan(replace(entry, parts=parts), scale, tuple(jobs), missing)


def obtain(name: str, root: Path | None) -> str:
    """As :func:`look`, but download what is missing if possible."""
    if look(name, root):
        try:
            if name in ood_datasets.NAMES:
                ood_datasets.load(name, root=root, size=32, channels=3, in_distribution="")
        except (DatasetError, MissingExtraError) as error:
            return str(error)
    return look(name, root)


def estimate(plan: Plan, *, workers: int) -> float:
    """Return the seconds that the runs that are not done will take on this machine, several at a time.

    Counted are the training steps, the validation after each epoch, and the predictions on all test sets, by the
    posterior and by MC dropout; other methods take little of the time.
    """
    total, measured = 0.0, {}
    for job in plan.jobs:
        if job.model not in measured:
            measured[job.model] = run_time(job.settings, job.root)
        passes = 1 + job.settings.train.num_samples * ("mc-dropout" in job.by)
        sets = 1 + len(job.corruptions) * len(job.severities) + len(job.ood)
        predicted = 0 if (job.folder / "metrics.json").exists() else sets * passes
        total += measured[job.model].seconds(epochs_done=epochs_done(job.folder), test_sets=predicted)
    return total / max(1, min(workers, len(plan.jobs)))


def run(plan: Plan, *, workers: int, say: Callable[[str], None] = lambda text: None) -> None:
    """Train, or resume, and evaluate the runs of a plan, several at a time with one thread each.

    Raises:
        DatasetError: no block has its data.
        Exception: the first one of a run; what is done stays.
    """
    if not plan.jobs:
        titles = ", ".join(_union(plan.missing.values()))
        raise DatasetError(f"the data of {plan.entry.name} are missing: {titles}")
    for job in plan.jobs:
        train.check(job.settings, job.folder, resume=True)
    with contextlib.closing(run_in_workers(run_job, plan.jobs, workers=workers)) as finished:
        for number, (job, accuracy) in enumerate(finished, 1):
            changes = f" ({', '.join(job.model.changes)})" if job.model.changes else ""
            where = f"{job.model.preset}{changes}, seed {job.seed}"
            say(f"{number} of {len(plan.jobs)}: {where}, test accuracy {100 * accuracy:.2f} %")


def run_job(job: Job) -> float:
    """Train, or resume, and evaluate a run; return its accuracy."""
    train.train(job.settings, job.folder, name=job.model.preset, root=job.root, resume=True, progress=False)
    evaluation = evaluate(
        job.folder,
        root=job.root,
        by=job.by,
        shift=bool(job.corruptions),
        corruptions=job.corruptions or STANDARD,
        severities=job.severities or SEVERITIES,
        ood=job.ood,
    )
    return evaluation.result.metrics["accuracy"]


def measured(plan: Plan, part: Part) -> MetricsBySeed:
    """Return our numbers of a block, row → seed → key of a column → value, unscaled.

    Raises:
        SettingsError: a run that was not evaluated, has changed since, or cannot be compared with another.
    """
    runs = {job.folder: read_evaluated_run(job.folder) for row in part.rows.values() for job in plan.jobs_of(row.model)}
    check_comparable(list(runs.values()))
    found = {}
    for name, row in part.rows.items():
        own = [runs[job.folder] for job in plan.jobs_of(row.model)]
        if row.is_ensemble:
            mixed = ensemble(own)
            scores = {} if mixed is None else {0: (mixed, {})}
        else:
            scores = {each.settings.train.seed or 0: (each.scores[row.method], _log(each)) for each in own}
        found[name] = {seed: _values(part, *each) for seed, each in scores.items()}
    return {name: seeds for name, seeds in found.items() if seeds}


def _values(part: Part, scores: Scores, log: dict[str, float]) -> dict[str, float]:
    values = {column.key: value_of(column, part, scores, log) for column in part.columns}
    return {key: value for key, value in values.items() if value is not None}


def _log(run: EvaluatedRun) -> dict[str, float]:
    """Return the median seconds of an epoch."""
    path = run.folder / "log.jsonl"
    seconds = [record["seconds"] for record in read_log(path) if record["kind"] == "epoch"] if path.exists() else []
    return {"seconds": median(seconds)} if seconds else {}


def _union(groups: Sequence) -> tuple:
    return tuple(dict.fromkeys(each for group in groups for each in group))
