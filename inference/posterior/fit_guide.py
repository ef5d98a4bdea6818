"""Training of a guide alone, with the model fixed: on one batch, or to its optimum on a data set of minibatches."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from probattn.draws import draws
from probattn.families import Diagonal, Full
from probattn.inference.batches import unpack_batch
from probattn.inference.elbo import ELBOLoss
from probattn.inference.natural_gradient import NaturalGradientDescent, gaussian_modules
from probattn.inference.non_finite import NonFiniteError, find_non_finite
from probattn.inference.posterior.frozen import frozen, prepared
from probattn.inference.prediction.latents import broadcasts
from probattn.inference.programs import attribute, device
from probattn.weights import kl_weight as weighted_kl

REDUCTIONS = 3
"""Number of times that the rates are divided by 3 before the next epoch without a gain ends the refit."""


class Objective:
    """ELBO of a data set under a guide, with several draws of the latent sites for each example.

    Args:
        model, guide: the fixed model, and a guide with its parameters.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: draws per example.
        weights: weights of the KLs of global and local sites.
    """

    def __init__(
        self, model: nn.Module, guide: nn.Module, data: Iterable, *, num_samples: int, weights: tuple[float, float]
    ) -> None:
        self.guide, self.data, self.num_samples, self.weights = guide, data, num_samples, weights
        self.device = device(model)
        self.vectorize = broadcasts(model, guide, lambda: next(iter(self)))
        elbo = TraceMeanField_ELBO(num_particles=1 if self.vectorize else num_samples)
        self.loss_of = ELBOLoss(model, guide, elbo)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for batch in self.data:
            yield tuple(tensor.to(self.device) for tensor in unpack_batch(batch).arguments())

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Return −ELBO of the data set, estimated on a batch, in nats, penalties included.

        Raises:
            NonFiniteError: it is NaN or Inf; the message names the source.
        """
        with ExitStack() as handlers:
            for count in ("example", self.num_samples) if self.vectorize else ():
                handlers.enter_context(draws(count))
            handlers.enter_context(weighted_kl(self.weights[0], local=self.weights[1]))
            loss = self.loss_of(*batch)
        if not loss.isfinite():
            source = find_non_finite(batch, {"model": self.loss_of.model, "guide": self.guide}, self.loss_of.traces)
            raise NonFiniteError(f"the ELBO is not finite, from {source or 'the likelihood: lower lr'}")
        return loss

    def estimate(self, *, scale: float | None = None) -> tuple[Tensor, Tensor]:
        """Estimate the ELBO of the data set by each batch, in nats without penalties, with draws of a fixed seed.

        Args:
            scale: add the gradients of the batches' losses, times their sizes and this, to those of the parameters.

        Returns:
            ELBOs ``(batches,)`` in nats, and the batches' sizes.

        Raises:
            ValueError: no data.
        """
        elbos, sizes = [], []
        with torch.random.fork_rng(), torch.set_grad_enabled(scale is not None):
            torch.manual_seed(0)
            for batch in self:
                loss = self.loss(batch)
                if scale is not None:
                    (loss * len(batch[0]) * scale).backward()
                terms = self.loss_of.terms().items()
                elbos.append(-sum(value.item() for name, value in terms if not name.startswith("penalty/")))
                sizes.append(len(batch[0]))
        if not sizes:
            raise ValueError("no data: the loader gave no batch")
        return torch.tensor(elbos, dtype=torch.float64), torch.tensor(sizes, dtype=torch.float64)


def fit_guide(
    model: nn.Module,
    guide: nn.Module,
    batch: tuple[Tensor, ...],
    *,
    steps: int = 1000,
    lr: float = 0.05,
    num_samples: int = 16,
) -> Tensor:
    """Maximise the ELBO over the guide's parameters, with the model in evaluation mode and unchanged.

    Uses Adam with a cosine schedule to 0. Local sites have their posteriors in their layers, which are part of the
    model and stay fixed.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`.
        guide: of :func:`probattn.guides.for_model`, a Pyro AutoGuide, or another module; changed in place.
        batch: ``(x, y)`` or ``(x, y, mask)``.
        steps: optimiser steps.
        lr: initial learning rate.
        num_samples: samples of the latent sites per example, over which each step averages.

    Returns:
        −ELBO in nats at each step, ``(steps,)``; empty for a guide without parameters.

    Raises:
        NonFiniteError: the loss is NaN or Inf; the message names the source.
        ValueError: a guide of another model.
    """
    batch = unpack_batch(batch).arguments()
    guide = prepared(model, guide, [batch])
    losses: list[Tensor] = []
    with frozen(model):
        parameters = [parameter for parameter in guide.parameters() if parameter.requires_grad]
        if not parameters:
            return torch.empty(0)
        objective = Objective(model, guide, [batch], num_samples=num_samples, weights=(1.0, 1.0))
        optimiser = torch.optim.Adam(parameters, lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(steps):
            optimiser.zero_grad()
            loss = objective.loss(batch)
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.detach())
    optimiser.zero_grad()
    return torch.stack(losses)


@dataclass(frozen=True)
class GuideRefit:
    """Result of :func:`refit_guide`; for KL and standard deviations see :func:`~probattn.inference.posterior_summary`.

    Args:
        elbo_before, elbo_after: ELBO in nats per example, without penalties and with the KLs times their weights.
        epochs: number of epochs.
        converged: True if the ELBO no longer rises by about ``tolerance`` (see :func:`refit_guide`); False if the
            epochs did not suffice.
    """

    elbo_before: float
    elbo_after: float
    epochs: int
    converged: bool


def refit_guide(
    model: nn.Module,
    guide: nn.Module,
    data: Iterable,
    *,
    epochs: int = 100,
    lr: float = 0.2,
    num_samples: int = 4,
    kl_weight: float = 1.0,
    local_kl_weight: float = 1.0,
    tolerance: float = 1e-4,
) -> GuideRefit:
    """Maximise the ELBO over the guide's parameters from their present values, with the model fixed.

    The model is in evaluation mode (without dropout) and keeps its parameters. Gaussian modules take natural-gradient
    steps, other parameters Adam's. Rates are divided by 3 after an epoch in which the ELBO did not rise by
    ``tolerance``; after three such reductions the next one ends these steps. The ELBO of an epoch is estimated with
    the same samples each time, and the guide keeps the parameters with the highest.

    An epoch without a gain is no optimum: where the means of many Gaussians are correlated, what is left is large in
    directions in which every step is short. So the means are then solved for by L-BFGS, with one pass over the data an
    evaluation, counted as an epoch, until that gains less than ``tolerance``. Without Gaussian modules, ``converged``
    is as of Adam's steps alone.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, with an attribute ``num_data``, the size of the training set,
            which determines the weight of the KL.
        guide: of :func:`probattn.guides.for_model`, a Pyro AutoGuide, or another module; changed in place.
        data: batches ``(x, y)`` or ``(x, y, mask)`` of the training set, without augmentation or with; read once per
            epoch and estimate.
        epochs: maximum number of epochs; the last line search may exceed it by a few.
        lr: initial length of natural-gradient steps, at most 1; Adam's rate is a tenth of it.
        num_samples: posterior samples per example.
        kl_weight: weight of the KL of global sites; 1 is the ELBO.
        local_kl_weight: weight of the KL of local sites; 1 is the ELBO.
        tolerance: in nats per example.

    Raises:
        NonFiniteError: the loss is NaN or Inf; names its source. The guide keeps its best parameters.
        ValueError: no data, or a guide of another model.
    """
    guide = prepared(model, guide, data)
    with frozen(model):
        objective = Objective(model, guide, data, num_samples=num_samples, weights=(kl_weight, local_kl_weight))
        elbos, sizes = objective.estimate()
        scale = 1 / (sizes.sum().item() * attribute(model, "num_data"))
        elbo_before = highest = scale * (elbos @ sizes).item()
        best = copy.deepcopy(guide.state_dict())
        gaussians = [part for part in gaussian_modules(guide) if all(p.requires_grad for p in part.parameters())]
        optimizers = _optimizers(guide, gaussians, lr=lr, kl_weight=kl_weight)
        epoch, reductions, converged = 0, 0, not optimizers
        try:
            while epoch < epochs and not converged:
                if reductions > REDUCTIONS:
                    epoch += _solve_means(objective, gaussians, scale=scale, steps=epochs - epoch, tolerance=tolerance)
                else:
                    epoch += 1
                    for batch in objective:
                        guide.zero_grad()
                        (objective.loss(batch) * len(batch[0]) / sizes.mean()).backward()
                        for optimizer in optimizers:
                            optimizer.step()
                elbos, sizes = objective.estimate()
                gain = scale * (elbos @ sizes).item() - highest
                if gain > 0:
                    highest, best = highest + gain, copy.deepcopy(guide.state_dict())
                if gain < tolerance:
                    guide.load_state_dict(best)
                    reductions += 1
                    for group in [group for optimizer in optimizers for group in optimizer.param_groups]:
                        group["lr"] /= 3
                    converged = reductions > REDUCTIONS + bool(gaussians) and (epoch < epochs or not gaussians)
        finally:
            guide.load_state_dict(best)
            guide.zero_grad()
    return GuideRefit(elbo_before, highest, epoch, converged)


def _optimizers(
    guide: nn.Module, gaussians: list[Full | Diagonal], *, lr: float, kl_weight: float
) -> list[torch.optim.Optimizer]:
    """Return natural gradients of the Gaussian modules and Adam for all other parameters, where there are any."""
    natural = {id(parameter) for module in gaussians for parameter in module.parameters()}
    others = [parameter for parameter in guide.parameters() if id(parameter) not in natural and parameter.requires_grad]
    optimizers = [NaturalGradientDescent(gaussians, lr=lr, scale=1 / kl_weight)] if gaussians else []
    return [*optimizers, torch.optim.Adam(others, lr=lr / 10)] if others else optimizers


def _solve_means(
    objective: Objective, gaussians: list[Full | Diagonal], *, scale: float, steps: int, tolerance: float
) -> int:
    """Maximise the ELBO over the means by L-BFGS, with covariances and samples fixed; return the number of passes."""
    locs = [module.loc for module in gaussians]
    options = {"max_iter": steps, "max_eval": steps, "tolerance_change": tolerance / 100}
    solver = torch.optim.LBFGS(locs, **options, history_size=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        objective.guide.zero_grad()
        elbos, sizes = objective.estimate(scale=scale)
        return locs[0].new_tensor(-scale * (elbos @ sizes).item())

    solver.step(loss)
    return solver.state[locs[0]]["func_evals"]
