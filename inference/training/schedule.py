"""Learning rates, and weights that change from step to step: functions of the step."""

import math


def cosine(share: float) -> float:
    """From 1 at a share of 0 of the way to 0 at 1, as half a cosine."""
    return (1 + math.cos(math.pi * share)) / 2


def linear(share: float) -> float:
    """From 1 at a share of 0 of the way to 0 at 1, as a line (CGP paper, sec. 5.1)."""
    return 1 - share


SCHEDULES = {"cosine": cosine, "linear": linear}


def learning_rate(schedule: str, *, step: int, steps: int, warmup: int, lr: float, min_lr: float) -> float:
    """The learning rate of a step: a linear warm-up that reaches ``lr`` at step ``warmup``, then the schedule.

    Args:
        schedule: one of ``SCHEDULES``.
        step: from 0.
        steps: of the run, at whose end ``min_lr`` is reached.
        warmup: of these, steps of warm-up.
        lr, min_lr: behind the warm-up and at the end.
    """
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    return min_lr + (lr - min_lr) * SCHEDULES[schedule]((step - warmup) / max(steps - warmup, 1))


def annealed(weight: float, *, step: int, steps: int) -> float:
    """The KL weight at a step: from 0 up to ``weight`` linearly over ``steps`` steps, ``weight`` from there on."""
    return weight if steps == 0 else weight * min(1.0, step / steps)


def between(start: float, end: float, *, step: int, steps: int) -> float:
    """A weight that goes linearly from ``start`` at step 0 to ``end`` at the last step, ``steps`` − 1."""
    return start + (end - start) * step / max(steps - 1, 1)
