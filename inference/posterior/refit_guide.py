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
from probattn.guides import Guide, Program, latent_sites
from probattn.inference import guide_checks
from probattn.inference.batches import unpack_batch
from probattn.inference.elbo import ELBOLoss
from probattn.inference.natural_gradient import NaturalGradientDescent, gaussian_modules
from probattn.inference.non_finite import NonFiniteError, find_non_finite
from probattn.inference.posterior.frozen import frozen
from probattn.inference.prediction.vectorization import broadcasts
from probattn.inference.programs import as_module, attribute, device
from probattn.weights import kl_weight

REDUCTIONS = 3
"""Number of times that the rates are divided by 3 before the next epoch without a gain ends the refit."""


@dataclass(frozen=True)
class GuideRefit:
    """Result of :func:`refit_guide`.

    Args:
        elbo_before, elbo_after: ELBO in nats per example, without penalties and with the KLs times their weights.
        kl_before, kl_after: KL of each global site in nats, without weight.
        sd_before, sd_after: standard deviation of the guide relative to the prior's, averaged over each site's scalars,
            for sites of :class:`~probattn.guides.Guide` whose distributions have one.
        epochs: number of epochs.
        converged: True if the ELBO no longer rises by about ``tolerance`` (see :func:`refit_guide`); False if the
            epochs did not suffice.
    """

    elbo_before: float
    elbo_after: float
    kl_before: dict[str, float]
    kl_after: dict[str, float]
    sd_before: dict[str, float]
    sd_after: dict[str, float]
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
    directions in which every step is short. So the means are then solved for by conjugate gradients, with one pass
    over the data a step, counted as an epoch, until the later half of the steps gained less than ``tolerance``. These
    gains estimate what was left before them. Without Gaussian modules, ``converged`` is as of Adam's steps alone.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, with an attribute ``num_data``, the size of the training set,
            which determines the weight of the KL.
        guide: of :func:`probattn.guides.for_model`, a Pyro AutoGuide, or a function; changed in place.
        data: batches ``(x, y)`` or ``(x, y, mask)`` of the training set, without augmentation or with; read once per
            epoch and estimate.
        epochs: maximum number of epochs.
        lr: initial length of natural-gradient steps, at most 1; Adam's rate is a tenth of it.
        num_samples: posterior samples per example.
        kl_weight: weight of the KL of global sites; 1 is the ELBO.
        local_kl_weight: weight of the KL of local sites; 1 is the ELBO.
        tolerance: in nats per example.

    Raises:
        NonFiniteError: the loss is NaN or Inf; names its source. The guide keeps its best parameters.
        ValueError: an argument out of bounds, no data, a guide of another model, or a model without ``num_data``.
    """
    bounds = {"epochs": epochs >= 1, "lr": 0 < lr <= 1, "num_samples": num_samples >= 1}
    bounds |= {"kl_weight": 0 < kl_weight < math.inf, "tolerance": 0 <= tolerance < math.inf}
    bounds |= {"local_kl_weight": 0 <= local_kl_weight < math.inf}
    if wrong := [name for name, holds in bounds.items() if not holds]:
        raise ValueError(f"out of bounds: {', '.join(wrong)} (see refit_guide)")
    guide = as_module(guide)
    if attribute(as_module(model), "num_data") is None:
        raise ValueError("refit_guide needs the size of the training set, which weights the KL: set model.num_data")
    if guide_checks.is_lazy(guide):
        guide_checks.materialise(guide, unpack_batch(next(iter(data))).arguments())
    guide_checks.check(model, guide)
    with frozen(model):
        fit = _Refit(model, guide, data, num_samples=num_samples, kl_weight=kl_weight, local_kl_weight=local_kl_weight)
        return fit.run(epochs=epochs, lr=lr, tolerance=tolerance)


class _Refit:
    """State of a refit; arguments are those of :func:`refit_guide`."""

    def __init__(
        self,
        model: Program,
        guide: nn.Module,
        data: Iterable,
        *,
        num_samples: int,
        kl_weight: float,
        local_kl_weight: float,
    ) -> None:
        self.model, self.guide, self.data = model, guide, data
        self.num_samples, self.kl_weight, self.local_kl_weight = num_samples, kl_weight, local_kl_weight
        self.num_data, self.device = attribute(as_module(model), "num_data"), device(model, guide)
        self.vectorize = broadcasts(as_module(model), guide, lambda: next(self._batches()))
        elbo = TraceMeanField_ELBO(num_particles=1 if self.vectorize else num_samples)
        self.loss, self.mean_size = ELBOLoss(model, guide, elbo), 1.0

    def run(self, *, epochs: int, lr: float, tolerance: float) -> GuideRefit:
        """Refit and return the result."""
        before = best = self._estimate()
        sd_before = self._relative_sd()
        kept, since, reductions, epoch = copy.deepcopy(self.guide.state_dict()), best[0], 0, 0
        optimizers = self._optimizers(lr)
        gaussians = [part for part in gaussian_modules(self.guide) if all(p.requires_grad for p in part.parameters())]
        try:
            while optimizers and epoch < epochs and reductions <= REDUCTIONS:
                for batch in self._batches():
                    self._step(batch, optimizers)
                epoch += 1
                found = self._estimate()
                if found[0] > best[0]:
                    best, kept = found, copy.deepcopy(self.guide.state_dict())
                if best[0] < since + tolerance:
                    reductions += 1
                    self.guide.load_state_dict(kept)
                    for optimizer in optimizers:
                        for group in optimizer.param_groups:
                            group["lr"] /= 3
                since = best[0]
            self.guide.load_state_dict(kept)
            converged = not optimizers or reductions > REDUCTIONS
            while converged and gaussians:
                gains, solved = self._solve_means(gaussians, steps=epochs - epoch, tolerance=tolerance)
                epoch, found = epoch + len(gains), self._estimate()
                gained = found[0] - best[0]
                if gained > 0:
                    best, kept = found, copy.deepcopy(self.guide.state_dict())
                if solved and abs(gained - sum(gains)) <= tolerance:  # the loss was the quadratic that CG assumes
                    break
                converged = epoch < epochs and gained > tolerance
        finally:
            self.guide.load_state_dict(kept)
            self.guide.zero_grad()
        return GuideRefit(before[0], best[0], before[1], best[1], sd_before, self._relative_sd(), epoch, converged)

    def _solve_means(self, modules: list[Full | Diagonal], *, steps: int, tolerance: float) -> tuple[list[float], bool]:
        """Maximise the ELBO over the means by conjugate gradients, with covariances and samples fixed.

        In a conjugate model the gradient is then linear in the means. A step needs it at one trial point: curvature
        along the step and gradient at its end follow. The covariances are the preconditioner. The gains after a step
        estimate what was left at it (Strakoš & Tichý, 2002, "On error estimation in the conjugate gradient method").

        Returns:
            Gain of each step in nats per example, and True if the later half of them gained less than ``tolerance``.
        """
        locs = [module.loc for module in modules]
        mean = nn.utils.parameters_to_vector(locs).detach()
        gradient, natural = self._gradients(modules)
        trial, length = -natural, 1 / sum(module.blocks() for module in modules)
        gains: list[float] = []
        while len(gains) < steps:
            _assign(locs, mean + length * trial)
            changes = [new - old for new, old in zip(self._gradients(modules), (gradient, natural), strict=True)]
            slope, change = -(gradient @ trial).item(), (changes[0] @ trial).item()
            if slope <= 0 or change <= 0:
                break
            ratio, norm = slope / change, gradient @ natural
            length *= ratio
            mean, gradient, natural = mean + length * trial, gradient + ratio * changes[0], natural + ratio * changes[1]
            gains.append(length * slope / 2)
            if len(gains) >= min(8, len(mean)) and sum(gains[len(gains) // 2 :]) <= tolerance:
                break
            trial = (ratio * (changes[0] @ natural) / norm).clamp(min=0) * trial - natural  # Polak & Ribière
        _assign(locs, mean)
        return gains, len(gains) > 0 and sum(gains[len(gains) // 2 :]) <= tolerance

    def _gradients(self, modules: list[Full | Diagonal]) -> tuple[Tensor, Tensor]:
        """Return gradient and natural gradient of −ELBO in nats per example by the means."""
        self.guide.zero_grad()
        self._estimate(backward=True)
        locs = [module.loc for module in modules]
        natural = [module.natural_step(0.0) for module in modules]
        return tuple(nn.utils.parameters_to_vector(each).detach() for each in ([loc.grad for loc in locs], natural))

    def _batches(self) -> Iterator[tuple[Tensor, ...]]:
        return (unpack_batch(batch).arguments() for batch in self.data)

    def _optimizers(self, lr: float) -> list[torch.optim.Optimizer]:
        """Return natural gradients of the Gaussian modules and Adam for all other parameters, where there are any."""
        gaussians, optimizers = gaussian_modules(self.guide), []
        if gaussians:
            optimizers.append(NaturalGradientDescent(gaussians, lr=lr, scale=1 / self.kl_weight))
        natural = {id(parameter) for module in gaussians for parameter in module.parameters()}
        others = [each for each in self.guide.parameters() if id(each) not in natural and each.requires_grad]
        if others:
            optimizers.append(torch.optim.Adam(others, lr=lr / 10))
        return optimizers

    def _step(self, batch: tuple, optimizers: list[torch.optim.Optimizer]) -> None:
        """Update the parameters on a batch, weighted by its size, so that an epoch counts each example once."""
        for optimizer in optimizers:
            optimizer.zero_grad()
        (self._loss(batch) * len(batch[0]) / self.mean_size).backward()
        for optimizer in optimizers:
            optimizer.step()

    def _loss(self, batch: tuple) -> Tensor:
        """Return −ELBO of the data set, estimated on a batch, in nats."""
        batch = tuple(part.to(self.device) for part in batch)
        with ExitStack() as handlers:
            if self.vectorize:
                handlers.enter_context(draws("example"))
                handlers.enter_context(draws(self.num_samples))
            handlers.enter_context(kl_weight(self.kl_weight, local=self.local_kl_weight))
            loss = self.loss(*batch)
        if not loss.isfinite():
            parts = {"model": as_module(self.model), "guide": self.guide}
            source = find_non_finite(batch, parts, self.loss.traces) or "the likelihood"
            raise NonFiniteError(f"the ELBO is not finite, from {source}: lower lr")
        return loss

    def _estimate(self, *, backward: bool = False) -> tuple[float, dict[str, float]]:
        """Return the ELBO in nats per example and the KL of each global site in nats, with samples of a fixed seed.

        With ``backward``, the gradients of the guide's parameters are those of −ELBO.
        """
        total, kl, number, batches = 0.0, {}, 0, 0
        with torch.random.fork_rng(), torch.set_grad_enabled(backward):
            torch.manual_seed(0)
            for batch in self._batches():
                size = len(batch[0])
                loss = self._loss(batch)
                if backward:
                    (loss * size).backward()
                local = {site["infer"].get("kl_of") for site in self.loss.traces[0].nodes.values() if "infer" in site}
                for name, value in self.loss.terms().items():
                    kind, _, site = name.partition("/")
                    value = value.item()
                    total -= 0.0 if kind == "penalty" else size * value
                    if kind == "kl" and site not in local:
                        kl[site] = kl.get(site, 0.0) + size * value / self.kl_weight
                number, batches = number + size, batches + 1
        if not number:
            raise ValueError("no data: the loader gave no batch")
        self.mean_size = number / batches
        for parameter in self.guide.parameters():
            if parameter.grad is not None and backward:
                parameter.grad /= number * self.num_data
        return total / number / self.num_data, {site: value / number for site, value in kl.items()}

    @torch.no_grad()
    def _relative_sd(self) -> dict[str, float]:
        if not isinstance(self.guide, Guide):
            return {}
        found = {}
        for site, prior in latent_sites(self.model):
            posterior = self.guide.get_submodule(site)(prior)
            try:
                found[site] = (posterior.stddev / prior.stddev).mean().item()
            except NotImplementedError:  # a Gaussian mapped to another support
                continue
        return found


@torch.no_grad()
def _assign(parameters: list[nn.Parameter], values: Tensor) -> None:
    """Copy the parts of a vector to parameters."""
    for parameter, part in zip(parameters, values.split([each.numel() for each in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))
