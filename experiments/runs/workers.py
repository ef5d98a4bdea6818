"""Worker processes of one thread each."""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

import torch

from probattn.experiments.runs.allocator import keep_memory

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_in_workers(
    function: Callable[[Job], Result], jobs: Sequence[Job], *, workers: int
) -> Iterator[tuple[Job, Result]]:
    """Yield each job with its result when it finishes.

    Results arrive as bytes: tensors among them need no shared memory, of which a container may have little.

    Args:
        function: module-level function, which the worker processes import.
        jobs: its arguments.
        workers: number of processes.

    Raises:
        Exception: the first error of a job. Jobs that have not begun are cancelled.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), context, set_up_worker) as pool:
        try:
            futures = {pool.submit(_pickled_result, function, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], pickle.loads(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _pickled_result(function: Callable[[Job], Result], job: Job) -> bytes:
    return pickle.dumps(function(job))


def set_up_worker() -> None:
    """Set up a worker process: one thread, freed memory is kept, and it exits when the parent process does."""

    def follow_parent() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    keep_memory()
    torch.set_num_threads(1)
    threading.Thread(target=follow_parent, daemon=True).start()
