"""Worker processes of one thread each."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import TypeVar

import torch

from probattn.experiments.runs.allocator import keep_memory

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_in_workers(
    function: Callable[[Job], Result], jobs: Sequence[Job], *, workers: int
) -> Iterator[tuple[Job, Result]]:
    """Yield each job with its result when it finishes.

    Results arrive as bytes: tensors among them need no shared memory, of which a container may have little. After an
    error, Ctrl-C, or when the iterator is closed (use ``contextlib.closing``), the worker processes are ended, and no
    further job begins.

    Args:
        function: module-level function, which the worker processes import.
        jobs: its arguments.
        workers: number of processes.

    Raises:
        ChildProcessError: a worker process was ended from outside.
        Exception: the first error of a job.
    """
    context = multiprocessing.get_context("spawn")
    stopped, stop = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(min(workers, len(jobs)), context, set_up_worker, (stopped,))
    running: dict[Future[bytes], Job] = {}
    waiting = list(reversed(jobs))
    try:
        while waiting or running:
            while waiting and len(running) < workers:  # the pool starts what it was given, even after an error
                job = waiting.pop()
                with _interrupts_ignored():
                    running[pool.submit(_pickled_result, function, job)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), pickle.loads(future.result())
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process was ended, perhaps for lack of memory: use fewer --workers; what is done stays"
        ) from error
    except BaseException:
        stop.close()
        raise
    finally:
        pool.shutdown()
        stop.close()
        stopped.close()


def _pickled_result(function: Callable[[Job], Result], job: Job) -> bytes:
    return pickle.dumps(function(job))


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C; processes that start meanwhile do so from their first instruction on, and leave it to the parent.

    Python sets handlers in the main thread only.
    """
    former = signal.getsignal(signal.SIGINT)
    if former is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def set_up_worker(stopped: Connection) -> None:
    """Set up a worker process: one thread, freed memory is kept, and it ends when the parent process stops it or ends.

    Args:
        stopped: end of a pipe whose other end the parent process closes to stop its workers.
    """

    def follow_parent() -> None:
        wait_for([multiprocessing.parent_process().sentinel, stopped])
        os._exit(1)

    keep_memory()
    torch.set_num_threads(1)
    threading.Thread(target=follow_parent, daemon=True).start()
