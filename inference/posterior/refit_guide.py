"""The guide's optimum for a fixed network, on a data set of minibatches."""

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from probattn.draws import draws
from probattn.families import Diagonal, Full
from probattn.guides import Program
from probattn.inference import guide_checks
from probattn.inference.batches import unpack_batch
from probattn.inference.elbo import ELBOLoss
from probattn.inference.natural_gradient import NaturalGradientDescent, gaussian_modules
from probattn.inference.posterior.fit_guide import check_finite
from probattn.inference.posterior.frozen import frozen
from probattn.inference.prediction.vectorization import broadcasts
from probattn.inference.programs import as_module, attribute, device
from probattn.weights import kl_weight

REDUCTIONS = 3
"""Number of times that the rates are divided by 3 before the next epoch without a gain ends the refit."""


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
    model: Program,
    guide: Program,
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
        guide: of :func:`probattn.guides.for_model`, a Pyro AutoGuide, or a function; changed in place.
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
    guide = as_module(guide)
    if guide_checks.is_lazy(guide):
        guide_checks.materialise(guide, unpack_batch(next(iter(data))).arguments())
    guide_checks.check(model, guide)
    with frozen(model):
        objective = _Objective(model, guide, data, num_samples=num_samples, weights=(kl_weight, local_kl_weight))
        elbo_before, optimizers = objective.highest, _optimizers(guide, lr=lr, kl_weight=kl_weight)
        gaussians = [part for part in gaussian_modules(guide) if all(p.requires_grad for p in part.parameters())]
        epoch = reductions = 0
        try:
            while optimizers and epoch < epochs and reductions <= REDUCTIONS:
                for batch in objective:
                    guide.zero_grad()
                    objective.loss(batch, share=len(batch[0]) / objective.batch_size).backward()
                    for optimizer in optimizers:
                        optimizer.step()
                epoch += 1
                if max(objective.keep_if_better(), 0.0) < tolerance:
                    reductions += 1
                    objective.restore()
                    for group in [group for optimizer in optimizers for group in optimizer.param_groups]:
                        group["lr"] /= 3
            objective.restore()
            converged, gain = not optimizers or reductions > REDUCTIONS, math.inf
            while converged and gaussians and gain > tolerance:
                epoch += _solve_means(objective, gaussians, steps=max(1, epochs - epoch), tolerance=tolerance)
                gain, converged = objective.keep_if_better(), epoch < epochs
        finally:
            objective.restore()
            guide.zero_grad()
        return GuideRefit(elbo_before, objective.highest, epoch, converged)


def weighted_loss(
    loss_of: ELBOLoss, batch: tuple, *, counts: Iterable[int | str], weights: tuple[float, float]
) -> Tensor:
    """Return −ELBO of a batch under ``draws`` of each count, with weights of the KLs of global and local sites."""
    with ExitStack() as handlers:
        for count in counts:
            handlers.enter_context(draws(count))
        handlers.enter_context(kl_weight(weights[0], local=weights[1]))
        return loss_of(*batch)


class _Objective:
    """−ELBO of a data set under a guide, and the best parameters of the guide; arguments as for :func:`refit_guide`."""

    def __init__(
        self, model: Program, guide: nn.Module, data: Iterable, *, num_samples: int, weights: tuple[float, float]
    ) -> None:
        self.guide, self.data, self.num_samples, self.weights = guide, data, num_samples, weights
        self.num_data, self.device = attribute(as_module(model), "num_data"), device(model, guide)
        self.vectorize = broadcasts(as_module(model), guide, lambda: next(iter(self)))
        elbo = TraceMeanField_ELBO(num_particles=1 if self.vectorize else num_samples)
        self.loss_of = ELBOLoss(model, guide, elbo)
        self.batch_size = 1.0
        self.highest, self.parameters = self.estimate(), copy.deepcopy(guide.state_dict())

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for batch in self.data:
            yield tuple(tensor.to(self.device) for tensor in unpack_batch(batch).arguments())

    def loss(self, batch: tuple, *, share: float = 1.0) -> Tensor:
        """Return −ELBO of the data set, estimated on a batch, in nats, times ``share``: the batch's relative size."""
        counts = ("example", self.num_samples) if self.vectorize else ()
        loss = weighted_loss(self.loss_of, batch, counts=counts, weights=self.weights)
        return check_finite(loss, self.loss_of, batch) * share

    def estimate(self, *, backward: bool = False) -> float:
        """Estimate the ELBO in nats per example, without penalties, with samples of a fixed seed.

        With ``backward``, the gradients of the guide's parameters are those of −ELBO in nats per example.
        """
        total, sizes = 0.0, []
        with torch.random.fork_rng(), torch.set_grad_enabled(backward):
            torch.manual_seed(0)
            for batch in self:
                sizes.append(len(batch[0]))
                loss = self.loss(batch)
                if backward:
                    (loss * sizes[-1]).backward()
                terms = self.loss_of.terms().items()
                total -= sizes[-1] * sum(value.item() for name, value in terms if not name.startswith("penalty/"))
        if not sizes:
            raise ValueError("no data: the loader gave no batch")
        self.batch_size, number = sum(sizes) / len(sizes), sum(sizes) * self.num_data
        for parameter in self.guide.parameters() if backward else ():
            if parameter.grad is not None:
                parameter.grad /= number
        return total / number

    def keep_if_better(self) -> float:
        """Keep the present parameters if their ELBO is the highest; return its gain over the highest before."""
        elbo, highest = self.estimate(), self.highest
        if elbo > highest:
            self.highest, self.parameters = elbo, copy.deepcopy(self.guide.state_dict())
        return elbo - highest

    def restore(self) -> None:
        """Set the guide to its best parameters."""
        self.guide.load_state_dict(self.parameters)


def _optimizers(guide: nn.Module, *, lr: float, kl_weight: float) -> list[torch.optim.Optimizer]:
    """Return natural gradients of the Gaussian modules and Adam for all other parameters, where there are any."""
    gaussians = gaussian_modules(guide)
    natural = {id(parameter) for module in gaussians for parameter in module.parameters()}
    others = [parameter for parameter in guide.parameters() if id(parameter) not in natural and parameter.requires_grad]
    optimizers = [NaturalGradientDescent(gaussians, lr=lr, scale=1 / kl_weight)] if gaussians else []
    return [*optimizers, torch.optim.Adam(others, lr=lr / 10)] if others else optimizers


def _solve_means(objective: _Objective, modules: list[Full | Diagonal], *, steps: int, tolerance: float) -> int:
    """Maximise the ELBO over the means by L-BFGS, with covariances and samples fixed; return the number of passes."""
    locs = [module.loc for module in modules]
    solver = torch.optim.LBFGS(
        locs,
        max_iter=steps,
        max_eval=steps,
        tolerance_change=tolerance / 100,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        objective.guide.zero_grad()
        return locs[0].new_tensor(-objective.estimate(backward=True))

    solver.step(loss)
    return solver.state[locs[0]]["func_evals"]
