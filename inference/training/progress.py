"""Progress of a training run: a bar in a terminal, a line now and then in a log file."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINES = 20


class TrainProgress:
    """Shows epochs and the last validation.

    Args:
        epochs: number of epochs of the run.
        steps: training steps of each.
        start: epochs done already.
        shown: False shows nothing.
    """

    def __init__(self, epochs: int, steps: int, *, start: int = 0, shown: bool = True) -> None:
        self.epochs, self.steps, self.shown = epochs, steps, shown
        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not (shown and self.console.is_terminal))
        self.task = self.bar.add_task(f"epoch {start + 1}/{epochs}", total=epochs * steps, completed=start * steps)

    def step_done(self) -> None:
        """Counts one training step."""
        self.bar.advance(self.task)

    def back_to(self, epoch: int) -> None:
        """Begins the epoch behind so many anew."""
        self.bar.update(self.task, completed=epoch * self.steps)

    def epoch_done(self, epoch: int, values: dict[str, float]) -> None:
        """Shows the epoch's values.

        Args:
            epoch: epochs done.
            values: ``train_loss`` and ``valid/METRIC``.
        """
        scores = ("accuracy", "mcc", "nll") if "valid/nll" in values else ("log_prob",)
        wanted = ("train_loss", *(f"valid/{name}" for name in scores))
        line = "  ".join(f"{name.replace('/', ' ')} {values[name]:.4f}" for name in wanted if name in values)
        self.bar.update(self.task, description=f"epoch {min(epoch + 1, self.epochs)}/{self.epochs}  {line}")
        every = -(-self.epochs // LINES)
        if self.shown and not self.console.is_terminal and (epoch % every == 0 or epoch in (1, self.epochs)):
            self.console.print(f"epoch {epoch}/{self.epochs}  {line}", soft_wrap=True)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
