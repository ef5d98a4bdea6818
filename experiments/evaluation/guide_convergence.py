"""A run's guide under the objective of its best epoch: its convergence, and the guide refitted."""

import copy
from collections.abc import Iterator
from itertools import islice

import torch

from probattn.experiments.runs.build import Loader, generator
from probattn.experiments.runs.load import TrainedRun
from probattn.guides import Guide
from probattn.inference.diagnostics.convergence import SiteConvergence, convergence
from probattn.inference.posterior.refit_guide import refit_guide
from probattn.inference.training.step import StepCoefficients
from probattn.models import Supervised
from probattn.weights import alpha

REFIT_EPOCHS = 5
"""Epochs of the refit."""
REFIT_BATCHES = 200
"""Training batches of an epoch of the refit, at most: more would take longer than the rest of an evaluation."""


def run_convergence(run: TrainedRun, *, seed: int) -> list[SiteConvergence]:
    """Test whether the guide of a run had converged at its best epoch, under the objective of that epoch.

    Args:
        run: the run.
        seed: seed of draws and batches.
    """
    last = _objectives(run)[-1]
    with torch.random.fork_rng(), alpha(last.alpha):
        torch.manual_seed(seed)
        return convergence(
            run.model,
            run.guide,
            _FirstBatches(_training_batches(run)),
            kl_weights=(last.kl, last.local_kl),
            refit_epochs=REFIT_EPOCHS,
        )


class _FirstBatches:
    """At most the first :data:`REFIT_BATCHES` batches of each epoch."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator:
        return islice(self.loader, REFIT_BATCHES)


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
