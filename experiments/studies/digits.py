"""Layers on handwritten digits, trained and evaluated on clean and corrupted images: ``probattn demo``."""

import contextlib
from collections.abc import Callable, Sequence

from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.reporting.report import Section, section
from probattn.experiments.runs import train
from probattn.experiments.studies.study import Job, finished

SEVERITIES, NUM_SAMPLES = (3,), 5


def run(jobs: Sequence[Job], *, workers: int, say: Callable[[str], None] = lambda text: None) -> list[Section]:
    """Train, or resume, and evaluate the runs; return their sections of a report in the same order.

    Args:
        jobs: the runs.
        workers: number of runs at a time, in processes of one thread each; sections are drawn while others still train.
        say: called with a message after each run.

    Raises:
        FileExistsError, SettingsError: a folder holds a run with other settings, or other files.
    """
    for job in jobs:
        train.check(job.settings, job.folder, resume=True)
    longest_first = sorted(jobs, key=lambda job: job.settings.warm_start is None)  # slow layers have a warm start
    sections = {}
    with contextlib.closing(finished(run_job, longest_first, workers)) as results:
        for number, (job, result) in enumerate(results, 1):
            say(f"{number} of {len(jobs)}: {job.name}, test accuracy {100 * result.metrics['accuracy']:.2f} %")
            sections[job.name] = section(result)
    return [sections[job.name] for job in jobs]


def run_job(job: Job) -> RunResult:
    """Train, or resume, and evaluate a run."""
    train.train(job.settings, job.folder, name=job.name, resume=True, progress=False)
    return evaluate(job.folder, num_samples=NUM_SAMPLES, shift=True, severities=SEVERITIES).result
