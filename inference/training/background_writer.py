"""Checkpoints in a thread: tensors are copied at once, and written while the next epoch trains."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from probattn.inference.io.tensor_archive import map_tensors


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
    copied = map_tensors(_on_cpu, value)
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()
    return copied


def _on_cpu(tensor: Tensor) -> Tensor:
    pinned = torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=tensor.is_cuda)
    return pinned.copy_(tensor.detach(), non_blocking=True)
