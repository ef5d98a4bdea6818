"""A whole comparison by one command: layers and seeds on digits, every method, shift and foreign images, resumable."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch

from probattn.experiments import methods, presets, runs
from probattn.experiments.evaluation import evaluate

SEVERITIES = (1, 3, 5)
METHODS = ("temperature", "mc-dropout", "laplace", "sv-dkl")


@dataclass(frozen=True)
class Job:
    """One run of a study, in a folder of its own."""

    preset: str
    seed: int
    epochs: int
    folder: Path


def jobs(layers: str, *, seeds: int, epochs: int, out: Path) -> list[Job]:
    """The runs of a study, all layers of one seed after another.

    Raises:
        SettingsError: an unknown layer.
    """
    names = presets.digits(layers)
    return [
        Job(name, seed, epochs, out / name.partition("/")[2] / f"seed-{seed}")
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
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), context, torch.set_num_threads, (1,)) as pool:
        try:
            futures = {pool.submit(work, job, by): job for job in todo}
            for number, future in enumerate(as_completed(futures), 1):
                accuracy = future.result()
                job = futures[future]
                say(f"{number} of {len(todo)}: {job.preset}, seed {job.seed}, test accuracy {100 * accuracy:.2f} %")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def work(job: Job, by: Sequence[str]) -> float:
    """Trains and evaluates one run, or the rest of it; its accuracy on the test images."""
    settings = presets.preset(job.preset).lasting(job.epochs).with_changes([f"train.seed={job.seed}"])
    runs.train(settings, job.folder, name=job.preset, resume=True, progress=False)
    done = evaluate(job.folder, by=by, shift=True, severities=SEVERITIES, ood=("default",))
    return done.result.metrics["accuracy"]
