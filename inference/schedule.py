"""Learning-rate schedule and KL annealing."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR


def warmup_cosine(optimizer: Optimizer, *, steps: int, warmup: int, min_lr: float) -> LRScheduler:
    """Linear warm-up over ``warmup`` steps, then a cosine down to ``min_lr`` at step ``steps``."""
    cosine = CosineAnnealingLR(optimizer, T_max=max(steps - warmup, 1), eta_min=min_lr)
    if warmup == 0:
        return cosine
    rise = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return SequentialLR(optimizer, [rise, cosine], milestones=[warmup])


def annealed(weight: float, *, step: int, steps: int) -> float:
    """The KL weight at a step: from 0 up to ``weight`` linearly over ``steps`` steps, ``weight`` from there on."""
    return weight if steps == 0 else weight * min(1.0, step / steps)
