"""Convergence of a run's guide, from its initial state, its options and its data."""

import torch

from probattn.experiments.runs.build import build, generator
from probattn.experiments.runs.load import TrainedRun
from probattn.handlers import alpha
from probattn.inference.diagnostics.convergence import convergence
from probattn.inference.diagnostics.convergence_records import Convergence
from probattn.inference.training.objective import StepCoefficients
from probattn.inference.training.warmup_decay import scheduled_lr

VALID_EXAMPLES = 1024
"""Validation examples that the spread of predictions is measured on, at most."""
REFIT_EPOCHS = 5
"""Epochs of the refit."""
REFIT_BATCHES = 200
"""Training batches up to which the guide is refitted: with more, that takes longer than the rest of an evaluation."""


def run_convergence(run: TrainedRun, *, num_samples: int, seed: int) -> Convergence:
    """Test whether the guide of a run had converged at its best epoch, under the objective of that epoch.

    The initial guide is built again from ``train.seed``; without a seed, and for natural gradients, whose steps no
    learning rate bounds, the movement is unknown.

    Args:
        run: the run.
        num_samples: draws of the predictions, whose spread is known for classes only.
        seed: seed of draws and batches.
    """
    options = run.settings.train
    train = run.dataset.training(
        batch_size=run.settings.data.batch_size, generator=generator(run.settings), device=run.device
    )
    steps_per_epoch = options.steps_per_epoch(len(train))
    sizes = {"steps_per_epoch": steps_per_epoch, "num_data": run.model.num_data}
    steps = [StepCoefficients.at(step, options=options, **sizes) for step in range(run.best_epoch * steps_per_epoch)]
    rates = (scheduled_lr(step, options=options, steps_per_epoch=steps_per_epoch) for step in range(len(steps)))
    initial = None
    valid = run.dataset.valid.select(torch.arange(min(VALID_EXAMPLES, len(run.dataset.valid))))
    with torch.random.fork_rng(), alpha(steps[-1].alpha):
        if options.seed is not None and options.guide_optimizer == "adam":
            initial = build(run.settings, run.dataset)[1].state_dict()
        torch.manual_seed(seed)
        return convergence(
            run.model,
            run.guide,
            train,
            valid=run.batches(valid) if run.dataset.classes else None,
            initial=initial,
            total_lr=options.guide_lr_scale * sum(rates),
            kl_weights=(steps[-1].kl, steps[-1].local_kl),
            refit_epochs=REFIT_EPOCHS if steps_per_epoch <= REFIT_BATCHES else 0,
            num_samples=num_samples,
        )
