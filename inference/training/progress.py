"""Progress of a training run: a bar in a terminal with rich, otherwise about 20 lines."""

import sys
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Self

from probattn.inference.imports import without_side_effects

if TYPE_CHECKING:
    from rich.progress import Progress

LINES = 20


class TrainProgress:
    """Display of epochs and the last validation on stderr.

    Args:
        epochs: number of epochs of the run.
        steps: number of training steps per epoch.
        start: number of epochs that are already done.
        enabled: False displays nothing.
    """

    def __init__(self, epochs: int, steps: int, *, start: int = 0, enabled: bool = True) -> None:
        self._epochs, self._enabled = epochs, enabled
        self._bar = _bar() if enabled else None
        if self._bar is not None:
            name, total = f"epoch {start + 1}/{epochs}", epochs * steps
            self._task = self._bar.add_task(name, total=total, completed=start * steps)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step_done(self) -> None:
        """Count one training step."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def epoch_done(self, epoch: int, values: dict[str, float]) -> None:
        """Display ``train_loss`` and ``valid/METRIC`` after a number of epochs."""
        metrics = ("accuracy", "mcc", "nll") if "valid/nll" in values else ("log_prob",)
        names = ("train_loss", *(f"valid/{name}" for name in metrics))
        line = "  ".join(f"{name.replace('/', ' ')} {values[name]:.4f}" for name in names if name in values)
        if self._bar is not None:
            following = min(epoch + 1, self._epochs)
            self._bar.update(self._task, description=f"epoch {following}/{self._epochs}  {line}")
        elif self._enabled and (epoch % -(-self._epochs // LINES) == 0 or epoch in (1, self._epochs)):
            print(f"epoch {epoch}/{self._epochs}  {line}", file=sys.stderr, flush=True)


def _bar() -> "Progress | None":
    """Return a progress bar on stderr; None if rich is not installed or stderr is no terminal."""
    if find_spec("rich") is None:
        return None
    with without_side_effects():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console) if console.is_terminal else None
