"""Layers on handwritten digits, trained and evaluated on clean and corrupted images."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from probattn.experiments.config import presets
from probattn.experiments.config.settings import Settings
from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.reporting.report import Section, section
from probattn.experiments.runs import train
from probattn.experiments.runs.workers import run_in_workers

SEVERITIES, NUM_SAMPLES = (3,), 5


@dataclass(frozen=True)
class Job:
    """A run of the demo, in its own folder."""

    name: str
    settings: Settings
    folder: Path


def plan(names: Sequence[str], *, epochs: int, out: Path) -> list[Job]:
    """Return the runs of some presets on digits, each in the folder of its layer.

    Args:
        names: presets on digits.
        epochs: epochs of each run, warm start included.
        out: folder of the runs.

    Raises:
        FileExistsError, SettingsError: a folder holds a run with other settings, or other files.
    """
    jobs = [Job(name, presets.preset(name).with_total_epochs(epochs), out / name.partition("/")[2]) for name in names]
    for job in jobs:
        train.check(job.settings, job.folder, resume=True)
    return jobs


def run(jobs: Sequence[Job], *, workers: int, say: Callable[[str], None] = lambda text: None) -> list[Section]:
    """Train, or resume, and evaluate the runs; return their sections of a report in the same order.

    Args:
        jobs: the runs.
        workers: number of runs at a time. Several are trained in processes of one thread each, without a progress bar,
            and sections are drawn while others still train.
        say: called with a message before each run, or after it where there are several at a time.

    Raises:
        Exception: as for :func:`~probattn.experiments.runs.train.train` and
            :func:`~probattn.experiments.evaluation.evaluate.evaluate`.
    """
    if workers == 1:
        sections = []
        for job in jobs:
            say(job.name)
            train.train(job.settings, job.folder, name=job.name, resume=True, say=say)
            sections.append(section(_evaluate(job)))
        return sections
    longest_first = sorted(jobs, key=lambda job: job.settings.warm_start is None)  # slow layers have a warm start
    finished = {}
    with contextlib.closing(run_in_workers(run_job, longest_first, workers=workers)) as results:
        for job, result in results:
            accuracy = 100 * result.metrics["accuracy"]
            say(f"{len(finished) + 1} of {len(jobs)}: {job.name}, test accuracy {accuracy:.2f} %")
            finished[job.name] = section(result)
    return [finished[job.name] for job in jobs]


def run_job(job: Job) -> RunResult:
    """Train, or resume, and evaluate a run in a worker, without a progress bar."""
    train.train(job.settings, job.folder, name=job.name, resume=True, progress=False)
    return _evaluate(job)


def _evaluate(job: Job) -> RunResult:
    return evaluate(job.folder, num_samples=NUM_SAMPLES, shift=True, severities=SEVERITIES).result
