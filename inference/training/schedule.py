"""Schedules of the learning rate, the KL weight and the regulariser's weight, as functions of the step."""

import math


def cosine(progress: float) -> float:
    """Decay from 1 at progress 0 to 0 at progress 1 along half a cosine."""
    return (1 + math.cos(math.pi * progress)) / 2


def linear(progress: float) -> float:
    """Decay from 1 at progress 0 to 0 at progress 1 linearly (CGP paper, sec. 5.1)."""
    return 1 - progress


SCHEDULES = {"cosine": cosine, "linear": linear}


def learning_rate(schedule: str, *, step: int, steps: int, warmup: int, lr: float, min_lr: float) -> float:
    """Return the learning rate of a step: linear warm-up that reaches ``lr`` at step ``warmup``, then the schedule.

    Args:
        schedule: one of ``SCHEDULES``.
        step: number of the step, from 0.
        steps: number of steps of the run, at whose end ``min_lr`` is reached.
        warmup: number of warm-up steps among them.
        lr, min_lr: learning rate after the warm-up and at the end.
    """
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    return min_lr + (lr - min_lr) * SCHEDULES[schedule]((step - warmup) / max(steps - warmup, 1))


def annealed(weight: float, *, step: int, steps: int) -> float:
    """Return the KL weight of a step: a linear rise from 0 to ``weight`` over ``steps`` steps, then ``weight``."""
    return weight if steps == 0 else weight * min(1.0, step / steps)


def interpolate(start: float, end: float, *, step: int, steps: int) -> float:
    """Interpolate linearly from ``start`` at step 0 to ``end`` at the last step, ``steps`` − 1."""
    return start + (end - start) * step / max(steps - 1, 1)
