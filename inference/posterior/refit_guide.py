"""Training of a guide alone to its optimum, with the model fixed."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from probattn import draws
from probattn.inference.batches import unpack_batch
from probattn.inference.non_finite import NonFiniteError
from probattn.inference.objective.elbo import ELBOLoss
from probattn.inference.objective.natural_gradient import NaturalGradientDescent, gaussian_modules
from probattn.inference.objective.num_data import attribute
from probattn.inference.posterior.frozen import frozen, prepare
from probattn.inference.prediction.latents import broadcasts, device
from probattn.threads import one_thread_at_a_time
from probattn.weights import kl_weight as weighted_kl

REDUCTIONS = 3
"""Number of times that the rates are divided by 3 before an epoch without a gain ends the steps."""
CONFIRMATIONS = 3
"""Number of solutions in a row, each with samples of its own, that must not gain."""


@dataclass(eq=False, kw_only=True)
class Objective:
    """ELBO of a data set under a guide, penalties included, with several draws of the latent sites
    for each example.

    Args:
        model, guide: the fixed model, and a guide with its parameters.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: draws per example.
        weights: weights of the KLs of global and local sites.
    """

    model: nn.Module
    guide: nn.Module
    data: Iterable
    num_samples: int
    weights: tuple[float, float]

    def __post_init__(self) -> None:
        self.vectorize = broadcasts(self.model, self.guide, lambda: next(self._batches()))
        elbo = TraceMeanField_ELBO(num_particles=1 if self.vectorize else self.num_samples)
        self.loss_of = ELBOLoss(self.model, self.guide, elbo)

    def losses(self) -> Iterator[tuple[Tensor, int]]:
        """Yield −ELBO of the data set in nats, estimated on a batch, and the batch's size."""
        of_global, of_local = self.weights
        for batch in self._batches():
            with weighted_kl(of_global, local=of_local), ExitStack() as handlers:
                if self.vectorize:
                    handlers.enter_context(draws("example"))
                    handlers.enter_context(draws(self.num_samples))
                loss = self.loss_of(*batch)
            if not loss.isfinite():
                raise NonFiniteError("the ELBO is not finite: clean the data, or lower lr")
            yield loss, len(batch[0])

    def estimate(self, *, scale: float | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Estimate the ELBO of the data set by each batch, in nats, with draws of a fixed seed.

        Args:
            scale: add the gradients of the batches' losses, times their sizes and this, to those of
                the parameters.
            seed: of PyTorch's generator.

        Returns:
            ELBOs ``(batches,)`` in nats, and the batches' sizes.
        """
        estimates = []
        with torch.random.fork_rng(), torch.set_grad_enabled(scale is not None):
            torch.manual_seed(seed)
            for loss, size in self.losses():
                if scale is not None:
                    (loss * size * scale).backward()
                estimates.append((-loss.item(), size))
        elbos, sizes = torch.tensor(estimates, dtype=torch.float64).unbind(1)
        return elbos, sizes

    def _batches(self) -> Iterator[tuple[Tensor, ...]]:
        place = device(self.model)
        for batch in self.data:
            yield tuple(tensor.to(place) for tensor in unpack_batch(batch).arguments())


@dataclass(frozen=True)
class GuideRefit:
    """Result of :func:`refit_guide`; for KL and standard deviations see
    :func:`~probattn.inference.posterior_summary`.

    Args:
        elbo_before, elbo_after: ELBO in nats per example, penalties included and with the KLs times
            their weights.
        epochs: number of epochs.
        converged: True if the ELBO is at its maximum by about ``tolerance``, False if the epochs
            did not suffice, None if that cannot be told (see :func:`refit_guide`).
    """

    elbo_before: float
    elbo_after: float
    epochs: int
    converged: bool | None


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
    """Maximise the ELBO over the guide's parameters from their present values, with the model
    fixed.

    The model is in evaluation mode (without dropout) and keeps its parameters. Gaussian modules
    take natural-gradient steps, other parameters Adam's. Rates are divided by 3 after an epoch in
    which the ELBO did not rise by ``tolerance``; after three such reductions the next one ends
    these steps. The ELBO of an epoch is estimated with the same samples each time, and the guide
    keeps the parameters with the highest.

    An epoch without a gain is no optimum: where the means of many Gaussians are correlated, what is
    left is large in directions in which every step is short. So first the means of Gaussian
    modules, then all parameters are solved for by L-BFGS, with one pass over the data an
    evaluation, counted as an epoch. Each solution has new samples, the same in all its evaluations.
    Its gain on these is the distance from the optimum, plus what it owes to their noise.

    ``converged`` is True after three solutions in a row for all parameters that gain less than
    ``tolerance``. It is None where that cannot be told: a solution gains more, but not for other
    samples, so ``num_samples`` is too small for the tolerance; two estimates with one seed differ,
    e.g. by an augmentation with NumPy; a solution diverges.

    >>> steps = 50 * [(x, y)]  # a data set of one batch: 50 steps an epoch
    >>> refit_guide(model, guide, steps, epochs=20)

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, with an attribute ``num_data``, the size
            of the training set, which determines the weight of the KL.
        guide: of :func:`probattn.guides.for_model`, a Pyro AutoGuide, or another module; changed in
            place.
        data: batches ``(x, y)`` or ``(x, y, mask)`` of the training set, without augmentation or
            with; read once per epoch and estimate.
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
    prepare(model, guide, data)
    with frozen(model):
        objective = Objective(
            model=model,
            guide=guide,
            data=data,
            num_samples=num_samples,
            weights=(kl_weight, local_kl_weight),
        )
        refit = _Refit(objective, epochs, tolerance)
        elbo_before = refit.highest
        converged = refit.maximise(lr=lr)
        guide.zero_grad()
    return GuideRefit(elbo_before, refit.highest, refit.epoch, converged)


@dataclass(eq=False)
class _Refit:
    """A guide on its way to the optimum, at the best parameters that were found after each method.

    Attributes:
        highest: the best parameters' ELBO in nats per example.
        epoch: number of epochs until now.
    """

    objective: Objective
    epochs: int
    tolerance: float
    epoch: int = 0

    def __post_init__(self) -> None:
        self.guide = self.objective.guide
        elbos, sizes = self.objective.estimate()
        self.mean_size = sizes.mean()
        num_data = attribute(self.objective.model, "num_data")
        self.scale = 1 / (sizes.sum().item() * num_data)
        self.highest = self.scale * (elbos @ sizes).item()
        self.best = copy.deepcopy(self.guide.state_dict())

    def maximise(self, *, lr: float) -> bool | None:
        """Take natural-gradient and Adam's steps, then solve by L-BFGS; return whether it has
        converged, None if that cannot be told."""
        trained = [parameter for parameter in self.guide.parameters() if parameter.requires_grad]
        if not trained:
            return True
        modules = gaussian_modules(self.guide)
        gaussians = [module for module in modules if set(module.parameters()) <= set(trained)]
        natural = set(nn.ModuleList(gaussians).parameters())
        others = [parameter for parameter in trained if parameter not in natural]
        adam = torch.optim.Adam([{"params": others}], lr=lr / 10)
        optimizers: list[torch.optim.Optimizer] = [adam]
        if gaussians:
            scale = 1 / self.objective.weights[0]
            optimizers.append(NaturalGradientDescent(gaussians, lr=lr, scale=scale))
        self.descend(optimizers)
        return self.solve([module.loc for module in gaussians], trained)

    def descend(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Take the optimisers' steps until the last reduction of their rates."""
        reductions = 0
        while self.epoch < self.epochs and reductions <= REDUCTIONS:
            self.epoch += 1
            for loss, size in self.objective.losses():
                self.guide.zero_grad()
                (loss * size / self.mean_size).backward()
                for optimizer in optimizers:
                    optimizer.step()
            if self._keep_better() < self.tolerance:
                reductions += 1
                for optimizer in optimizers:
                    optimizer.param_groups[0]["lr"] /= 3

    def solve(self, means: list[nn.Parameter], trained: list[nn.Parameter]) -> bool | None:
        """Maximise the ELBO over the means, then over all parameters, by L-BFGS; return as for
        :meth:`maximise`."""
        if abs(self._estimate() - self.highest) > self.tolerance / 10:
            return None
        parameters = means or trained
        confirmations = 0
        seed = 0
        while self.epoch < self.epochs:
            seed += 1
            try:
                gain = self._maximise(parameters, seed)
            except NonFiniteError:
                self.guide.load_state_dict(self.best)
                return None
            if self._keep_better() >= self.tolerance:
                confirmations = 0
            elif parameters is not trained:
                parameters = trained
            elif gain >= self.tolerance:
                return None
            else:
                confirmations += 1
            if confirmations == CONFIRMATIONS and self.epoch < self.epochs:
                return True
        return False

    def _maximise(self, parameters: list[nn.Parameter], seed: int) -> float:
        """Maximise the ELBO with a seed's samples by L-BFGS; return the gain on these samples."""
        before = self._estimate(seed)
        steps = self.epochs - self.epoch
        solver = torch.optim.LBFGS(
            parameters,
            max_iter=steps,
            max_eval=steps,
            tolerance_change=self.tolerance / 100,
            history_size=50,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            self.guide.zero_grad()
            self.epoch += 1
            return parameters[0].new_tensor(-self._estimate(seed, scale=self.scale))

        solver.step(loss)
        return self._estimate(seed) - before

    def _estimate(self, seed: int = 0, scale: float | None = None) -> float:
        """Estimate the ELBO in nats per example; arguments as for :meth:`Objective.estimate`."""
        elbos, sizes = self.objective.estimate(seed=seed, scale=scale)
        return self.scale * (elbos @ sizes).item()

    def _keep_better(self) -> float:
        """Keep the present or the best parameters, those of the higher ELBO; return the gain."""
        gain = self._estimate() - self.highest
        if gain > 0:
            self.highest += gain
            self.best = copy.deepcopy(self.guide.state_dict())
        else:
            self.guide.load_state_dict(self.best)
        return gain
