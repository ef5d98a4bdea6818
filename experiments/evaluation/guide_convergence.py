"""A run's guide under the objective of its best epoch: its convergence, and the guide refitted."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass
class _FirstBatches:
    """At most the first :data:`REFIT_BATCHES` batches of each epoch."""

    loader: Loader

    def __iter__(self) -> Iterator:
        return islice(self.loader, REFIT_BATCHES)


def run_convergence(run: TrainedRun, *, seed: int) -> list[SiteConvergence]:
    """Test whether the guide of a run had converged at its best epoch, under the objective of that epoch.

    Args:
        run: the run.
        seed: seed of draws and batches.
    """
    last, loader = _objective(run)
    weights = (last.kl, last.local_kl)
    with torch.random.fork_rng(), alpha(last.alpha):
        torch.manual_seed(seed)
        loader = _FirstBatches(loader)
        return convergence(run.model, run.guide, loader, kl_weights=weights, refit_epochs=REFIT_EPOCHS)


def refitted(run: TrainedRun) -> tuple[Supervised, Guide]:
    """Return a copy of the run's model and guide, with the guide refitted by :func:`~probattn.inference.refit_guide`.

    The objective is that of the run's best epoch, the number of epochs :data:`REFIT_EPOCHS`; the model has global
    latent variables, and the KL weight is above 0.
    """
    (model, guide), (last, loader) = copy.deepcopy((run.model, run.guide)), _objective(run)
    with alpha(last.alpha):
        refit_guide(model, guide, loader, epochs=REFIT_EPOCHS, kl_weight=last.kl, local_kl_weight=last.local_kl)
    return model, guide


def _objective(run: TrainedRun) -> tuple[StepCoefficients, Loader]:
    """Return the coefficients of the best epoch's last step, and the batches in the order of the first epoch."""
    options, size = run.settings.train, run.settings.data.batch_size
    loader = run.dataset.training(batch_size=size, generator=generator(run.settings), device=run.device)
    steps = options.steps_per_epoch(len(loader))
    step = run.best_epoch * steps - 1
    return StepCoefficients.at(step, options=options, steps_per_epoch=steps, num_data=run.model.num_data), loader
