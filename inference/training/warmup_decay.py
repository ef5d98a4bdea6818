"""Learning-rate scheduler of a run: linear warm-up, then decay along a cosine or a line."""

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from probattn.inference.training.options import TrainOptions
from probattn.inference.training.schedule import learning_rate


class WarmupDecay(LRScheduler):
    """Linear warm-up, then decay along half a cosine or a line to ``min_lr`` (see :func:`~.schedule.learning_rate`).

    A parameter group whose rate is a multiple of ``lr`` keeps that multiple at every step.

    Args:
        optimizer: the optimiser.
        options: gives ``schedule``, ``lr``, ``min_lr``, ``epochs`` and ``warmup_epochs``.
        steps_per_epoch: number of training steps of an epoch.
    """

    def __init__(self, optimizer: Optimizer, *, options: TrainOptions, steps_per_epoch: int) -> None:
        self.schedule, self.lr, self.min_lr = options.schedule, options.lr, options.min_lr
        self.steps, self.warmup = options.epochs * steps_per_epoch, round(options.warmup_epochs * steps_per_epoch)
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return the learning rate of each parameter group at the present step."""
        return [base / self.lr * self.rate(self.last_epoch) for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the schedule; the schedule itself is that of the options."""
        return {name: getattr(self, name) for name in ("last_epoch", "_step_count", "base_lrs", "_last_lr")}

    def rate(self, step: int) -> float:
        """Return the learning rate at a step, counted from 0, of parameters whose rate has no factor."""
        sizes = {"steps": self.steps, "warmup": self.warmup}
        return learning_rate(self.schedule, step=step, **sizes, lr=self.lr, min_lr=self.min_lr)
