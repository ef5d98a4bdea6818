"""Worker processes of one thread each."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, cast

import torch


def run_in_workers(
    function: Callable, jobs: Sequence[Any], *, workers: int
) -> Generator[tuple[Any, Any]]:
    """Yield each job with its result when it finishes.

    After an error, or when the iterator is closed (``contextlib.closing``), the workers end at
    once, whatever they do.

    Args:
        function: module-level function, which the workers import.
        jobs: its arguments.
        workers: number of processes.

    Raises:
        ChildProcessError: a worker was ended from outside.
        Exception: the first error of a job.
    """
    before = multiprocessing.active_children()
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), multiprocessing.get_context("spawn"), set_up_worker
    )
    try:
        futures = {pool.submit(function, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()
        pool.shutdown()  # workers that are killed would leave their semaphores behind
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker was ended, perhaps for lack of memory: use fewer --workers"
        ) from error
    finally:
        for worker in set(multiprocessing.active_children()) - set(before):
            worker.kill()
        pool.shutdown(cancel_futures=True)


def set_up_worker() -> None:
    """Set up a worker of one thread, which leaves Ctrl-C to its parent and ends when the parent
    ends."""

    def follow_parent() -> None:
        cast(Any, multiprocessing.parent_process()).join()  # a worker has one
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=follow_parent, daemon=True).start()
