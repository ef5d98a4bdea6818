"""Progress of a training run: a bar in a terminal, about 20 lines in a log file."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
        self.epochs, self.steps, self.enabled = epochs, steps, enabled
        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not (enabled and self.console.is_terminal))
        self.task = self.bar.add_task(f"epoch {start + 1}/{epochs}", total=epochs * steps, completed=start * steps)

    def step_done(self) -> None:
        """Count one training step."""
        self.bar.advance(self.task)

    def restart_epoch(self, done: int) -> None:
        """Go back to the end of epoch number ``done``."""
        self.bar.update(self.task, completed=done * self.steps)

    def epoch_done(self, epoch: int, values: dict[str, float]) -> None:
        """Display the values of an epoch.

        Args:
            epoch: number of epochs done.
            values: ``train_loss`` and ``valid/METRIC``.
        """
        metrics = ("accuracy", "mcc", "nll") if "valid/nll" in values else ("log_prob",)
        names = ("train_loss", *(f"valid/{name}" for name in metrics))
        line = "  ".join(f"{name.replace('/', ' ')} {values[name]:.4f}" for name in names if name in values)
        self.bar.update(self.task, description=f"epoch {min(epoch + 1, self.epochs)}/{self.epochs}  {line}")
        every = -(-self.epochs // LINES)
        if self.enabled and not self.console.is_terminal and (epoch % every == 0 or epoch in (1, self.epochs)):
            self.console.print(f"epoch {epoch}/{self.epochs}  {line}", soft_wrap=True)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
