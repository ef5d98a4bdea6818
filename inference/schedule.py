"""Learning-rate schedules, and weights that change from step to step."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR


def warmup_cosine(optimizer: Optimizer, *, steps: int, warmup: int, min_lr: float) -> LRScheduler:
    """Linear warm-up over ``warmup`` steps, then a cosine down to ``min_lr`` at step ``steps``."""
    cosine = CosineAnnealingLR(optimizer, T_max=max(steps - warmup, 1), eta_min=min_lr)
    return _warmed_up(optimizer, cosine, warmup=warmup)


def warmup_linear(optimizer: Optimizer, *, steps: int, warmup: int, min_lr: float) -> LRScheduler:
    """Linear warm-up over ``warmup`` steps, then a line down to ``min_lr`` at step ``steps`` (CGP paper, sec. 5.1)."""
    share = min_lr / optimizer.param_groups[0]["lr"]
    line = LinearLR(optimizer, start_factor=1.0, end_factor=share, total_iters=max(steps - warmup, 1))
    return _warmed_up(optimizer, line, warmup=warmup)


SCHEDULES = {"cosine": warmup_cosine, "linear": warmup_linear}


def annealed(weight: float, *, step: int, steps: int) -> float:
    """The KL weight at a step: from 0 up to ``weight`` linearly over ``steps`` steps, ``weight`` from there on."""
    return weight if steps == 0 else weight * min(1.0, step / steps)


def between(start: float, end: float, *, step: int, steps: int) -> float:
    """A weight that goes linearly from ``start`` at step 0 to ``end`` at the last step, ``steps`` − 1."""
    return start + (end - start) * step / max(steps - 1, 1)


def _warmed_up(optimizer: Optimizer, decay: LRScheduler, *, warmup: int) -> LRScheduler:
    """The decay behind a linear rise to the optimiser's learning rate, which it reaches at step ``warmup``."""
    if warmup == 0:
        return decay
    rise = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return SequentialLR(optimizer, [rise, decay], milestones=[warmup])
