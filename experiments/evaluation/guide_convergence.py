"""A run's guide under the objective of its best epoch: its convergence, and the guide refitted."""

import copy
from itertools import islice

import torch

from probattn.experiments.runs.build import Loader, generator
from probattn.experiments.runs.load import TrainedRun
from probattn.guides import Guide
from probattn.inference import SiteConvergence, convergence, refit_guide
from probattn.inference.training.step import StepCoefficients
from probattn.models import Supervised
from probattn.weights import alpha

REFIT_EPOCHS = 5
"""Epochs of the refit."""
REFIT_BATCHES = 200
"""Training batches of an epoch of the refit, at most: more would take longer than the rest of an evaluation."""


class _FirstBatches:
    """At most the first :data:`REFIT_BATCHES` batches of each epoch."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self):
        return islice(self.loader, REFIT_BATCHES)


def run_convergence(run: TrainedRun, *, seed: int) -> list[SiteConvergence]:
    """Test whether the guide of a run had converged at its best epoch, under the objective of that epoch.

    Args:
        run: the run.
        seed: seed of draws and batches.
    """
    last, batches = _objective(run), _FirstBatches(_training_batches(run))
    with torch.random.fork_rng(), alpha(last.alpha):
        torch.manual_seed(seed)
        weights = last.kl, last.local_kl
        return convergence(run.model, run.guide, batches, kl_weights=weights, refit_epochs=REFIT_EPOCHS)


def refitted(run: TrainedRun) -> tuple[Supervised, Guide]:
    """Return a copy of the run's model and guide, with the guide refitted by :func:`~probattn.inference.refit_guide`.

    The objective is that of the run's best epoch, the number of epochs :data:`REFIT_EPOCHS`; the model has global
    latent variables, and the KL weight is above 0.
    """
    (model, guide), last = copy.deepcopy((run.model, run.guide)), _objective(run)
    with alpha(last.alpha):
        weights = {"kl_weight": last.kl, "local_kl_weight": last.local_kl}
        refit_guide(model, guide, _training_batches(run), epochs=REFIT_EPOCHS, **weights)
    return model, guide


def _training_batches(run: TrainedRun) -> Loader:
    """Return batches of the training part as in training, in the order of the run's first epoch."""
    order = generator(run.settings)
    return run.dataset.training(batch_size=run.settings.data.batch_size, generator=order, device=run.device)


def _objective(run: TrainedRun) -> StepCoefficients:
    """Return the coefficients of the last step of the best epoch."""
    options, batches = run.settings.train, len(_training_batches(run))
    steps = options.steps_per_epoch(batches)
    last = run.best_epoch * steps - 1
    return StepCoefficients.at(last, options=options, steps_per_epoch=steps, num_data=run.model.num_data)
