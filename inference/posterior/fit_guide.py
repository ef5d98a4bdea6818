"""Variational inference for a model with fixed parameters."""

from contextlib import nullcontext

import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from torch import Tensor

from probattn.draws import draws
from probattn.guides import Program
from probattn.inference import guide_checks
from probattn.inference.batches import unpack_batch
from probattn.inference.elbo import ELBOLoss
from probattn.inference.non_finite import NonFiniteError, find_non_finite
from probattn.inference.posterior.frozen import frozen
from probattn.inference.prediction.vectorization import broadcasts
from probattn.inference.programs import as_module


def fit_guide(
    model: Program,
    guide: Program,
    batch: tuple[Tensor, ...],
    *,
    steps: int = 1000,
    lr: float = 0.05,
    num_samples: int = 16,
    elbo: ELBO | None = None,
) -> Tensor:
    """Maximise the ELBO over the guide's parameters, with the model in evaluation mode and unchanged.

    Uses Adam with a cosine schedule to 0. Local sites have their posteriors in their layers, which are part of the
    model and stay fixed.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, a function, or a model under handlers.
        guide: of :func:`probattn.guides.for_model`, a Pyro AutoGuide, or a function; changed in place.
        batch: ``(x, y)`` or ``(x, y, mask)``.
        steps: optimiser steps.
        lr: initial learning rate.
        num_samples: samples of the latent sites over which each step averages.
        elbo: one of Pyro's; by default ``TraceMeanField_ELBO()``, with analytic KL.

    Returns:
        −ELBO in nats at each step, ``(steps,)``; empty for a guide without parameters.

    Raises:
        NonFiniteError: the loss is NaN or Inf; the message names the source.
        ValueError: a guide of another model.
    """
    guide, batch = as_module(guide), unpack_batch(batch).arguments()
    guide_checks.materialise(guide, batch)
    guide_checks.check(model, guide)
    with frozen(model):
        parameters = [parameter for parameter in guide.parameters() if parameter.requires_grad]
        if not parameters:
            return torch.empty(0)
        optimiser = torch.optim.Adam(parameters, lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        vectorize = elbo is not None or broadcasts(as_module(model), guide, lambda: batch)
        elbo = elbo or TraceMeanField_ELBO(num_particles=1 if vectorize else num_samples)
        loss_of, losses = ELBOLoss(model, guide, elbo), []
        for _ in range(steps):
            optimiser.zero_grad()
            with draws(num_samples) if vectorize else nullcontext():
                loss = check_finite(loss_of(*batch), loss_of, batch)
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.detach())
    optimiser.zero_grad()
    return torch.stack(losses)


def check_finite(loss: Tensor, loss_of: ELBOLoss, batch: tuple) -> Tensor:
    """Return −ELBO of a batch if it is finite.

    Raises:
        NonFiniteError: it is NaN or Inf; the message names the source.
    """
    if not loss.isfinite():
        source = find_non_finite(batch, {"model": loss_of.model, "guide": loss_of.guide}, loss_of.traces)
        raise NonFiniteError(f"the ELBO is not finite, from {source or 'the likelihood: lower lr'}")
    return loss
