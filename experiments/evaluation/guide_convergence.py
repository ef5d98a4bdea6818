"""A run's guide under the objective of its best epoch: its convergence, and the guide refitted."""

import copy

import torch

from probattn.experiments.runs.build import Loader, build, generator
from probattn.experiments.runs.load import TrainedRun
from probattn.guides import Guide
from probattn.inference.diagnostics.convergence import convergence
from probattn.inference.diagnostics.convergence_records import Convergence
from probattn.inference.posterior.refit_guide import refit_guide
from probattn.inference.training.optimizers import scheduled_lr
from probattn.inference.training.step import StepCoefficients
from probattn.models import Supervised
from probattn.weights import alpha

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
    options, train, steps = run.settings.train, _training_batches(run), _objectives(run)
    steps_per_epoch = options.steps_per_epoch(len(train))
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
            valid=run.batches_by_length(valid) if run.dataset.classes else None,
            initial=initial,
            total_lr=options.guide_lr_scale * sum(rates),
            kl_weights=(steps[-1].kl, steps[-1].local_kl),
            refit_epochs=REFIT_EPOCHS if steps_per_epoch <= REFIT_BATCHES else 0,
            num_samples=num_samples,
        )


def refitted(run: TrainedRun) -> tuple[Supervised, Guide]:
    """Return a copy of the run's model and guide, with the guide refitted by :func:`~probattn.inference.refit_guide`.

    The objective is that of the run's best epoch, the number of epochs :data:`REFIT_EPOCHS`; the model has global
    latent variables, and the KL weight is above 0.
    """
    (model, guide), last = copy.deepcopy((run.model, run.guide)), _objectives(run)[-1]
    with alpha(last.alpha):
        weights = {"kl_weight": last.kl, "local_kl_weight": last.local_kl}
        refit_guide(model, guide, _training_batches(run), epochs=REFIT_EPOCHS, **weights)
    return model, guide


def _training_batches(run: TrainedRun) -> Loader:
    """Return batches of the training part as in training, in the order of the run's first epoch."""
    return run.dataset.training(
        batch_size=run.settings.data.batch_size, generator=generator(run.settings), device=run.device
    )


def _objectives(run: TrainedRun) -> list[StepCoefficients]:
    """Return the coefficients of all steps up to the best epoch."""
    options, batches = run.settings.train, len(_training_batches(run))
    sizes = {"steps_per_epoch": options.steps_per_epoch(batches), "num_data": run.model.num_data}
    steps = range(run.best_epoch * sizes["steps_per_epoch"])
    return [StepCoefficients.at(step, options=options, **sizes) for step in steps]
