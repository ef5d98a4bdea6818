"""Progress of a training run: a bar in a terminal, about 20 lines in a log file."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINES = 20


class TrainProgress(Progress):
    """Display of epochs and the last validation on stderr.

    Args:
        epochs: number of epochs of the run.
        steps: number of training steps per epoch.
        start: number of epochs that are already done.
        enabled: False displays nothing.
    """

    def __init__(self, epochs: int, steps: int, *, start: int = 0, enabled: bool = True) -> None:
        self._epochs, self._steps, self._enabled = epochs, steps, enabled
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        super().__init__(*columns, console=console, disable=not (enabled and console.is_terminal))
        self._task = self.add_task(f"epoch {start + 1}/{epochs}", total=epochs * steps, completed=start * steps)

    def step_done(self) -> None:
        """Count one training step."""
        self.advance(self._task)

    def restart_epoch(self, done: int) -> None:
        """Go back to the end of epoch number ``done``."""
        self.update(self._task, completed=done * self._steps)

    def epoch_done(self, epoch: int, values: dict[str, float]) -> None:
        """Display the values of an epoch.

        Args:
            epoch: number of epochs done.
            values: ``train_loss`` and ``valid/METRIC``.
        """
        metrics = ("accuracy", "mcc", "nll") if "valid/nll" in values else ("log_prob",)
        names = ("train_loss", *(f"valid/{name}" for name in metrics))
        line = "  ".join(f"{name.replace('/', ' ')} {values[name]:.4f}" for name in names if name in values)
        self.update(self._task, description=f"epoch {min(epoch + 1, self._epochs)}/{self._epochs}  {line}")
        every = -(-self._epochs // LINES)
        if self._enabled and not self.console.is_terminal and (epoch % every == 0 or epoch in (1, self._epochs)):
            self.console.print(f"epoch {epoch}/{self._epochs}  {line}", soft_wrap=True)
