"""Threads that meet for certain: nothing here depends on how fast a machine is, waiting too long is a failure."""

import threading

TOO_LONG = 120
"""Seconds after which a wait is a failure: an event of a test that passes comes at once."""


class WatchedLock:
    """A lock that sets an event before a thread has to wait for it."""

    def __init__(self):
        self.lock, self.has_to_wait = threading.RLock(), threading.Event()

    def acquire(self, blocking=True):
        if self.lock.acquire(blocking=False):
            return True
        self.has_to_wait.set()
        return blocking and self.lock.acquire(timeout=TOO_LONG)

    def release(self):
        self.lock.release()

    def __enter__(self):
        assert self.acquire(), "deadlock"

    def __exit__(self, *error):
        self.release()


class Thread(threading.Thread):
    """A thread whose result, or error, is that of :meth:`result`."""

    def __init__(self, call, *args):
        super().__init__(daemon=True)
        self.call, self.args, self.value, self.error = call, args, None, None

    def run(self):
        try:
            self.value = self.call(*self.args)
        except BaseException as error:
            self.error = error

    def result(self):
        self.join(TOO_LONG)
        assert not self.is_alive(), "deadlock"
        if self.error is not None:
            raise self.error
        return self.value


def in_threads(calls):
    """Results of calls that run in a thread each."""
    started = [Thread(call) for call in calls]
    for thread in started:
        thread.start()
    return [thread.result() for thread in started]


def second_inside_first(module, first, second, lock):
    """Results of two calls: the second starts in a thread of its own while the first runs a module.

    The first goes on when the second runs the module too, or waits for the lock.
    """
    started = []

    def hook(*_):
        if not started:
            started.append(Thread(second))
            started[0].start()
            assert lock.has_to_wait.wait(TOO_LONG), "the second thread neither waits nor runs the module"
        elif threading.current_thread() is started[0]:
            lock.has_to_wait.set()

    handle = module.register_forward_pre_hook(hook)
    try:
        result = first()
        return result, started[0].result()
    finally:
        handle.remove()
