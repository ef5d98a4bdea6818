"""Worker processes of one thread each."""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from typing import Any

import torch


def run_in_workers(function: Callable, jobs: Sequence[Any], *, workers: int) -> Iterator[tuple[Any, Any]]:
    """Yield each job with its result when it finishes.

    Results arrive as bytes, so that tensors need no shared memory. After an error, or when the iterator is closed
    (``contextlib.closing``), the workers end at once, whatever they do.

    Args:
        function: module-level function, which the workers import.
        jobs: its arguments.
        workers: number of processes.

    Raises:
        ChildProcessError: a worker was ended from outside.
        Exception: the first error of a job.
    """
    context = multiprocessing.get_context("spawn")
    stopped, stop = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(min(workers, len(jobs)), context, set_up_worker, (stopped,))
    try:
        futures = {pool.submit(_pickled_result, function, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], pickle.loads(future.result())
        pool.shutdown()
    except BrokenProcessPool as error:
        raise ChildProcessError("a worker was ended, perhaps for lack of memory: use fewer --workers") from error
    finally:
        stop.close()
        pool.shutdown(cancel_futures=True)
        stopped.close()


def _pickled_result(function: Callable, job: Any) -> bytes:
    return pickle.dumps(function(job))


def set_up_worker(stopped: Connection) -> None:
    """Set up a worker of one thread, which leaves Ctrl-C to its parent and ends when the parent ends or stops it.

    Args:
        stopped: end of a pipe, whose other end the parent closes to stop its workers.
    """

    def follow_parent() -> None:
        wait([multiprocessing.parent_process().sentinel, stopped])
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=follow_parent, daemon=True).start()
