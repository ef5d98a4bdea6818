"""Checkpoints in a thread: tensors are copied at once, and written while the next epoch trains."""

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class BackgroundWriter:
    """Runs one task after the other in a thread; after an error, no task runs before the error was raised here.

    At most one task waits, so that no more than two snapshots are in memory.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._tasks: list[Future] = []
        self._error: BaseException | None = None

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task after those before it; waits until at most one of them is left.

        Raises:
            Exception: the error of an earlier task.
        """
        while len(self._tasks) > 1:
            self._tasks.pop(0).result()
        if self._error is not None:
            self.wait()
        self._tasks.append(self._threads.submit(self._run, task))

    def wait(self) -> None:
        """Wait until all tasks are done.

        Raises:
            Exception: the error of a task; those after it were left out.
        """
        while self._tasks:
            self._tasks.pop(0).result()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, task: Callable[[], None]) -> None:
        if self._error is None:
            try:
                task()
            except BaseException as error:  # raised by the thread that trains
                self._error = error


def snapshot(value: Any) -> Any:
    """Return a copy on the CPU of tensors in dicts, lists and tuples; those of a GPU are copied together."""
    copied = _snapshot(value)
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()
    return copied


def _snapshot(value: Any) -> Any:
    if isinstance(value, Tensor):
        pinned = torch.empty_like(value, device="cpu", requires_grad=False, pin_memory=value.is_cuda)
        return pinned.copy_(value.detach(), non_blocking=True)
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps the class and the versions of modules in a state dict
        copied.update({key: _snapshot(each) for key, each in value.items()})
        return copied
    if type(value) in (list, tuple):
        return type(value)(map(_snapshot, value))
    return value
