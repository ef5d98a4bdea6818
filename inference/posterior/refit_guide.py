"""Training of a guide alone to its optimum, with the model fixed."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from probattn.draws import draws
from probattn.families import Diagonal, Full
from probattn.inference.batches import unpack_batch
from probattn.inference.non_finite import NonFiniteError
from probattn.inference.objective.elbo import ELBOLoss
from probattn.inference.objective.natural_gradient import NaturalGradientDescent, gaussian_modules
from probattn.inference.posterior.frozen import frozen, prepared
from probattn.inference.prediction.latents import broadcasts
from probattn.inference.programs import attribute, device
from probattn.threads import one_thread_at_a_time
from probattn.weights import kl_weight as weighted_kl

REDUCTIONS = 3
"""Number of times that the rates are divided by 3 before the next epoch without a gain ends the refit."""


class Objective:
    """ELBO of a data set under a guide, penalties included, with several draws of the latent sites for each example.

    Args:
        model, guide: the fixed model, and a guide with its parameters.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: draws per example.
        weights: weights of the KLs of global and local sites.
    """

    def __init__(
        self, model: nn.Module, guide: nn.Module, data: Iterable, *, num_samples: int, weights: tuple[float, float]
    ) -> None:
        self.data, self.weights, self.device = data, weights, device(model)
        vectorize = broadcasts(model, guide, lambda: next(self._batches()))
        self.draws: tuple[int | Literal["example"], ...] = ("example", num_samples) if vectorize else ()
        self.loss_of = ELBOLoss(model, guide, TraceMeanField_ELBO(num_particles=1 if vectorize else num_samples))

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        """Yield −ELBO of the data set in nats, estimated on a batch, and the batch's size.

        Raises:
            NonFiniteError: a loss is NaN or Inf.
        """
        for batch in self._batches():
            with ExitStack() as handlers:
                for number in self.draws:
                    handlers.enter_context(draws(number))
                handlers.enter_context(weighted_kl(self.weights[0], local=self.weights[1]))
                loss = self.loss_of(*batch)
            if not loss.isfinite():
                raise NonFiniteError("the ELBO is not finite: clean the data, or lower lr")
            yield loss, len(batch[0])

    def estimate(self, *, scale: float | None = None) -> tuple[Tensor, Tensor]:
        """Estimate the ELBO of the data set by each batch, in nats, with draws of a fixed seed.

        Args:
            scale: add the gradients of the batches' losses, times their sizes and this, to those of the parameters.

        Returns:
            ELBOs ``(batches,)`` in nats, and the batches' sizes.
        """
        estimates = []
        with torch.random.fork_rng(), torch.set_grad_enabled(scale is not None):
            torch.manual_seed(0)
            for loss, size in self.losses():
                if scale is not None:
                    (loss * size * scale).backward()
                estimates.append((-loss.item(), size))
        elbos, sizes = torch.tensor(estimates, dtype=torch.float64).unbind(1)
        return elbos, sizes

    def _batches(self) -> Iterator[tuple[Tensor, ...]]:
        for batch in self.data:
            yield tuple(tensor.to(self.device) for tensor in unpack_batch(batch).arguments())


@dataclass(frozen=True)
class GuideRefit:
    """Result of :func:`refit_guide`; for KL and standard deviations see :func:`~probattn.inference.posterior_summary`.

    Args:
        elbo_before, elbo_after: ELBO in nats per example, penalties included and with the KLs times their weights.
        epochs: number of epochs.
        converged: True if the ELBO no longer rises by about ``tolerance`` (see :func:`refit_guide`); False if the
            epochs did not suffice.
    """

    elbo_before: float
    elbo_after: float
    epochs: int
    converged: bool


@one_thread_at_a_time
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

    >>> refit_guide(model, guide, 50 * [(x, y)], epochs=20)  # a data set of one batch: 50 steps an epoch

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
        NonFiniteError: the loss is NaN or Inf.
        ValueError: a guide of another model.
    """
    guide = prepared(model, guide, data)
    with frozen(model):
        objective = Objective(model, guide, data, num_samples=num_samples, weights=(kl_weight, local_kl_weight))
        elbos, sizes = objective.estimate()
        scale = 1 / (sizes.sum().item() * attribute(model, "num_data"))
        elbo_before = highest = scale * (elbos @ sizes).item()
        best = copy.deepcopy(guide.state_dict())
        gaussians = [module for module in gaussian_modules(guide) if all(p.requires_grad for p in module.parameters())]
        natural = {id(parameter) for module in gaussians for parameter in module.parameters()}
        trained = [parameter for parameter in guide.parameters() if parameter.requires_grad]
        others = {"params": [parameter for parameter in trained if id(parameter) not in natural]}
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam([others], lr=lr / 10)]
        if gaussians:
            optimizers.append(NaturalGradientDescent(gaussians, lr=lr, scale=1 / kl_weight))
        epoch, reductions, converged = 0, 0, not trained
        while epoch < epochs and not converged:
            if reductions > REDUCTIONS:
                epoch += _solve_means(objective, gaussians, scale=scale, steps=epochs - epoch, tolerance=tolerance)
            else:
                epoch += 1
                for loss, size in objective.losses():
                    guide.zero_grad()
                    (loss * size / sizes.mean()).backward()
                    for optimizer in optimizers:
                        optimizer.step()
            elbos, sizes = objective.estimate()
            gain = scale * (elbos @ sizes).item() - highest
            if gain > 0:
                highest, best = highest + gain, copy.deepcopy(guide.state_dict())
            if gain < tolerance:
                guide.load_state_dict(best)
                reductions += 1
                for optimizer in optimizers:
                    optimizer.param_groups[0]["lr"] /= 3
                converged = reductions > REDUCTIONS + bool(gaussians) and (epoch < epochs or not gaussians)
        guide.load_state_dict(best)
        guide.zero_grad()
    return GuideRefit(elbo_before, highest, epoch, converged)


def _solve_means(
    objective: Objective, gaussians: list[Full | Diagonal], *, scale: float, steps: int, tolerance: float
) -> int:
    """Maximise the ELBO over the means by L-BFGS, with covariances and samples fixed; return the number of passes."""
    locs = [module.loc for module in gaussians]
    options: dict[str, Any] = {"history_size": 50, "line_search_fn": "strong_wolfe"}
    solver = torch.optim.LBFGS(locs, max_iter=steps, max_eval=steps, tolerance_change=tolerance / 100, **options)

    def loss() -> Tensor:
        solver.zero_grad()
        elbos, sizes = objective.estimate(scale=scale)
        return locs[0].new_tensor(-scale * (elbos @ sizes).item())

    solver.step(loss)
    return solver.state[locs[0]]["func_evals"]
