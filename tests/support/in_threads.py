"""Calls in four threads at once, and a layer that notes how many threads are in it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from probattn import KEPSVGPAttention, priors

THREADS = 4


def in_threads(functions):
    """Call functions in four threads that start together, and return their results in order."""
    start = threading.Barrier(THREADS)

    def call(number_and_function):
        number, function = number_and_function
        if number < THREADS:
            start.wait(60)
        return function()

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, enumerate(functions)))


class Visits:
    """Largest number of threads that were in :func:`busy` at once."""

    inside: set[int] = set()  # noqa: RUF012 - shared by all models on purpose
    most = 0


def busy(scale):
    """The normal prior, which takes its time, so that threads that may run together do."""
    Visits.inside.add(threading.get_ident())
    Visits.most = max(Visits.most, len(Visits.inside))
    time.sleep(0.002)
    Visits.inside.discard(threading.get_ident())
    return priors.normal(scale)


BUSY = KEPSVGPAttention.partial(rank=2, eta=0.1, prior=busy)


def most_at_once(functions):
    """Return the largest number of threads that were in layers with :func:`busy` at once while
    functions ran."""
    Visits.most = 0
    in_threads(functions)
    return Visits.most
