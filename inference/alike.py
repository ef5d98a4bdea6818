"""Whether runs are alike enough for their steps to be computed together."""

from collections.abc import Iterable, Sequence

import pyro
import torch

from probattn.functional import errors
from probattn.handlers import at_mean
from probattn.inference import rng
from probattn.inference.diagnosis import first_line
from probattn.inference.distributed import world
from probattn.inference.members_step import MembersStep, stacked
from probattn.inference.trainer import Trainer


def find_obstacle(trainers: Sequence[Trainer]) -> str | None:
    """Why these runs cannot be trained together, or None; tried on their first batches, which leaves no trace."""
    if len(trainers) < 2:
        return None
    known = {
        "there are several processes": world().size > 1,
        "their blocks are compiled": trainers[0].settings.compile,
        "they draw one sample after another": not all(trainer.vectorize for trainer in trainers),
        "their networks have buffers, which a step may change": any(
            True for trainer in trainers for _ in trainer.module.buffers()
        ),
        "their networks or guides differ": _differ(
            (repr(trainer.model), repr(trainer.guide), trainer.model.num_data) for trainer in trainers
        ),
        "their loaders give different numbers of batches": _differ(len(trainer.train) for trainer in trainers),
    }
    return next((why for why, holds in known.items() if holds), None) or _try(trainers)


@torch.no_grad()
def _try(trainers: Sequence[Trainer]) -> str | None:
    """Draws as in a step, for what vmap cannot do, and compares losses without randomness with those of each alone."""
    before = [rng.capture(trainer.train) for trainer in trainers]
    try:
        batches, (weights, *_), _ = zip(*(next(iter(trainer.todo())) for trainer in trainers), strict=True)
        batch, step = stacked(batches), MembersStep(trainers)
        for trainer in trainers:
            trainer.module.train()
        step.losses(batch, weights)
        for trainer in trainers:
            trainer.module.eval()
        with at_mean(), pyro.validation_enabled(False), errors.deferred():
            together = step.losses(batch, weights)[0]
            alone = torch.stack(
                [each.eager.objective(own, weights) for each, own in zip(trainers, batches, strict=True)]
            )
    except RuntimeError as error:
        return first_line(error)
    finally:
        for trainer, states in zip(trainers, before, strict=True):
            rng.restore(states, trainer.train)
    same = torch.allclose(together, alone, rtol=1e-2, equal_nan=True)
    return None if same else "together, their losses are not what they are alone"


def _differ(values: Iterable) -> bool:
    return len(set(values)) > 1
