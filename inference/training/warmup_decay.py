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
        self.options, self.steps_per_epoch = options, steps_per_epoch
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return the learning rate of each parameter group at the present step."""
        lr = scheduled_lr(self.last_epoch, options=self.options, steps_per_epoch=self.steps_per_epoch)
        return [base / self.options.lr * lr for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the schedule; the schedule itself is that of the options."""
        return {name: getattr(self, name) for name in ("last_epoch", "_step_count", "base_lrs", "_last_lr")}


def scheduled_lr(step: int, *, options: TrainOptions, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, counted from 0, by the options."""
    steps, warmup = options.epochs * steps_per_epoch, round(options.warmup_epochs * steps_per_epoch)
    return learning_rate(options.schedule, step=step, steps=steps, warmup=warmup, lr=options.lr, min_lr=options.min_lr)
