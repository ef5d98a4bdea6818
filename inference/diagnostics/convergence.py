"""Convergence and collapse of a guide: its distance from its optimum and from the prior."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from probattn.distributions import stddev_of
from probattn.guides import Guide, latent_sites
from probattn.inference.batches import unpack_batch
from probattn.inference.diagnostics.predictive_check import posterior_draws
from probattn.inference.objective.num_data import attribute
from probattn.inference.posterior.frozen import frozen, prepare
from probattn.inference.posterior.refit_guide import Objective, refit_guide
from probattn.threads import one_thread_at_a_time

DRAWS = 1000
"""Draws from which a KL without closed form, and moments of guides other than this library's, are
estimated."""
MIN_DRAWS = 128
"""Draws per batch, at least: with fewer examples, several draws each."""
BATCHES = 8
"""Training batches on which a gain is measured, at most."""
PASSES = 4
"""Passes over these batches on which a gain is measured, each with its own draws."""
MATERIAL_GAIN = 0.1
"""Nats per latent variable from which a gain by refitting counts: a Gaussian guide loses as much if
its means are off by 0.45 posterior standard deviations (½ δ²), or if its standard deviations are
too small by a factor of 0.7."""
STANDARD_ERRORS = 3
"""Number of standard errors that a gain must exceed."""
COLLAPSED_KL = 0.05
"""Nats per variable below which a posterior counts as the prior: that of a mean shifted by 0.32
prior standard deviations, or of 0.8 of the prior's standard deviation."""
INFORMED_STD = 0.5
"""Standard deviation, relative to the prior's, of a single variable below which its site has not
collapsed: data have told three times as much about it as the prior."""


@dataclass(frozen=True, kw_only=True)
class SiteConvergence:
    """Convergence of the guide at one global latent site.

    Args:
        site: its name.
        size: number of scalar variables.
        num_data: number of training examples.
        kl: KL(q ‖ prior) in nats; of Gaussians with the moments of draws for other guides than this
            library's.
        std_ratio: mean, smallest and largest ratio of posterior to prior standard deviation over
            its variables.
        gain: increase of the ELBO by refitting the guide at this site alone, in nats of the whole
            data set; None if it was not refitted. Of guides other than this library's, all sites
            are refitted.
        gain_error: its standard error.
    """

    site: str
    size: int
    num_data: int
    kl: float
    std_ratio: tuple[float, float, float]
    gain: float | None = None
    gain_error: float = 0.0

    @property
    def state(self) -> str:
        """The verdict: ``"not converged"``, ``"collapsed"`` to the prior, ``"alive"``, or
        ``"unknown"``.

        A site has not converged if refitting gains practically something (see
        :data:`MATERIAL_GAIN`), which is unknown without a refit. A site has collapsed if q is close
        to the prior (see :data:`COLLAPSED_KL`).
        """
        bound = max(MATERIAL_GAIN * self.size, STANDARD_ERRORS * self.gain_error)
        if self.gain is not None and not self.gain <= bound:  # NaN counts, too
            return "not converged"
        if self.kl < COLLAPSED_KL * self.size and self.std_ratio[1] > INFORMED_STD:
            return "collapsed"
        return "unknown" if self.gain is None else "alive"

    def __str__(self) -> str:
        gain = "unknown"
        if self.gain is not None:
            gain = f"{self.gain / self.num_data:.2g} nats per example"
        kl = f"KL {self.kl / self.size:.2g} nats per variable"
        spread = f"sd {self.std_ratio[0]:.2f} of the prior's"
        return f"{self.site}: {self.state}, gain of refitting {gain}, {kl}, {spread}"


@one_thread_at_a_time
def convergence(
    model: nn.Module,
    guide: nn.Module,
    data: Iterable,
    *,
    kl_weights: tuple[float, float] = (1.0, 1.0),
    refit_epochs: int = 5,
) -> list[SiteConvergence]:
    """Test whether a guide has reached its optimum, and whether that is the prior.

    For each global latent site, with the network fixed and in evaluation mode:

    - *refit*: gain of the ELBO by a few epochs of :func:`~probattn.inference.refit_guide`, a lower
      bound of its distance from the optimum, measured on the same batches and draws before and
      after;
    - KL and standard deviations relative to the prior's.

    Model, guide and PyTorch's generator are left unchanged; copies are refitted.

    >>> print(*convergence(model, guide, train), sep="\\n")  # doctest: +SKIP

    Args:
        model: the model.
        guide: its guide. Of another guide than this library's, all sites are refitted together.
        data: training batches ``(x, y)`` or ``(x, y, mask)`` on the model's device, read several
            times. Those of training: shuffled, augmented.
        kl_weights: KL weights of global and local sites in the training's objective.
        refit_epochs: epochs of the refit, each of which reads all of ``data`` twice; 0 skips it, as
            does a KL weight of 0.

    Returns:
        One entry per site; none for a model without global latent variables.

    Raises:
        ValueError: a guide of another model.
    """
    batches = [unpack_batch(batch).arguments() for batch in islice(data, BATCHES)]
    prepare(model, guide, batches)
    model, guide = copy.deepcopy((model, guide))
    guide.requires_grad_(True)
    with torch.random.fork_rng(), frozen(model):
        sites = posterior_summary(model, guide, batches[0][0][:2])
        if not (sites and refit_epochs and kl_weights[0] > 0):
            return sites
        number = max(1, MIN_DRAWS // len(batches[0][0]))
        objective = Objective(
            model=model,
            guide=guide,
            data=batches * PASSES,
            num_samples=number,
            weights=kl_weights,
        )
        initial = copy.deepcopy(guide.state_dict())
        before, sizes = objective.estimate()
        refit_guide(
            model,
            guide,
            data,
            epochs=refit_epochs,
            kl_weight=kl_weights[0],
            local_kl_weight=kl_weights[1],
        )
        refitted = copy.deepcopy(guide.state_dict())
        for row, site in enumerate(sites):
            is_own = isinstance(guide, Guide) and site.site in guide.sites
            prefix = f"{site.site}." if is_own else ""
            changed = {name: value for name, value in refitted.items() if name.startswith(prefix)}
            guide.load_state_dict(initial | changed)
            gains = objective.estimate()[0] - before
            gain = (gains @ sizes / sizes.sum()).item()
            error = gains.std().item() / len(gains) ** 0.5
            sites[row] = replace(site, gain=gain, gain_error=error)
    return sites


@one_thread_at_a_time
@torch.no_grad()
def posterior_summary(
    model: nn.Module, guide: nn.Module, x: Tensor | None = None
) -> list[SiteConvergence]:
    """Summarise how far q is from the prior, one entry per global latent site, without refitting.

    Where standard deviations do not exist (HalfCauchy), scaled median absolute deviations of draws
    count.

    Args:
        model: the model.
        guide: its guide.
        x: inputs; needed for other guides than this library's, of which moments of draws count.
    """
    if isinstance(guide, Guide) and guide.rest is None:
        priors = dict(latent_sites(model))
        laws = {site: (guide.get_submodule(site)(priors[site]), priors[site]) for site in priors}
    elif x is None:
        raise ValueError("posterior_summary needs inputs x for a guide of another kind")
    else:
        posterior = posterior_draws(model, guide, x, num_samples=DRAWS)
        prior = posterior_draws(model, None, x, num_samples=DRAWS)
        laws = {site: (_gaussian(posterior[site]), _gaussian(prior[site])) for site in posterior}
    sites = []
    for site, (q, p) in laws.items():
        try:
            kl = kl_divergence(q, p)
        except NotImplementedError:
            u = q.sample((DRAWS,))
            kl = (q.log_prob(u) - p.log_prob(u)).mean(0)
        ratio = stddev_of(q) / stddev_of(p)
        summary = SiteConvergence(
            site=site,
            size=p.event_shape.numel(),
            num_data=attribute(model, "num_data"),
            kl=kl.sum().item(),
            std_ratio=(ratio.mean().item(), ratio.min().item(), ratio.max().item()),
        )
        sites.append(summary)
    return sites


def _gaussian(draws: Tensor) -> dist.TorchDistribution:
    """Return the Gaussian with the moments of draws ``(S, *event)``."""
    return dist.Normal(draws.double().mean(0), draws.double().std(0)).to_event()
