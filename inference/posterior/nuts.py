"""The posterior of a small model by NUTS, the judge of what its guides say."""

import warnings
from dataclasses import dataclass

import pyro
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.ops.integrator import register_exception_handler
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor, nn

from probattn.functional.errors import NumericalError
from probattn.inference.posterior.fit_guide import Batch, check_whole, frozen

LARGEST_R_HAT, FEWEST_EFFECTIVE = 1.05, 100.0

# A trajectory that leaves the region where kernels can be factorised has energy NaN and is rejected, as any other.
register_exception_handler("probattn", lambda error: isinstance(error, NumericalError), warn_on_overwrite=False)


class ConvergenceWarning(UserWarning):
    """Chains that cannot be trusted, with the reasons."""


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of the posterior by Markov chains, and what they say of their own quality.

    Args:
        draws: by site, chain after chain: ``(chains · num_samples, *event)`` of what all examples share, ``(chains ·
            num_samples, n, *event)`` of what each has of its own.
        r_hat: by site, of each scalar, split R̂ (Gelman et al., 2013); 1 is converged.
        effective: by site, of each scalar, the effective number of draws.
        divergences: number of trajectories whose energy diverged after the warm-up.
    """

    draws: dict[str, Tensor]
    r_hat: dict[str, Tensor]
    effective: dict[str, Tensor]
    divergences: int

    @property
    def problems(self) -> tuple[str, ...]:
        """Why not to trust these draws, in words; empty where nothing speaks against them."""
        found = []
        for site in self.draws:
            r_hat, effective = self.r_hat[site].max().item(), self.effective[site].min().item()
            if not r_hat <= LARGEST_R_HAT:
                found.append(f"R̂ of {site} is up to {r_hat:.3g} (> {LARGEST_R_HAT})")
            if not effective >= FEWEST_EFFECTIVE:
                found.append(f"{site} has as few as {effective:.0f} effective draws (< {FEWEST_EFFECTIVE:.0f})")
        if self.divergences:
            found.append(f"{self.divergences} trajectories diverged")
        return tuple(found)


def nuts(
    model: nn.Module,
    batch: Batch,
    *,
    num_samples: int = 1000,
    warmup: int = 500,
    chains: int = 1,
    target_accept: float = 0.8,
    progress: bool = False,
) -> Chains:
    """Draws from the posterior of every latent site given the labels, by Pyro's NUTS; weights and Λ are held fixed.

    The density is the program's, as the ELBO counts it: priors of the latent sites, the likelihood of all labels, and
    penalties, which weigh on latent sites of layers below theirs (``eta=0``, ``alpha=0`` leave them out). What follows
    for single layers:

    - KEP-SVGP's ``u``: p(u | y), since its own KSVD penalty does not depend on it.
    - CGP's ``z_q`` under ``collapsed=True``: p(z_q | z_k, y). Guides draw it from p(z_q | z_k), its posterior by
      design: NUTS differs.
    - CGP's ``z_o`` and ``z_q`` without: those given z_k, y and the observed ``nu``, for ``alpha=1`` and
      ``regulariser_norm="example"``. Another weight w would raise the density of z_o to the power w, and is refused.
    - SGPA's ``g`` has the program's prior: independent tokens under ``draws="marginal"``, N(0, C) under ``"joint"``.

    Chains start at draws from the prior and run one after the other, in evaluation mode. Use ``model.double()``: the
    trajectories of float32 need smaller steps.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, built for ``num_data`` of the batch's size.
        batch: the whole data set, ``(x, y)`` or ``(x, y, mask)``.
        num_samples: draws of each chain.
        warmup: steps of each chain that adapt step size and masses and are thrown away.
        chains: how many; R̂ of a single one compares its two halves, and cannot see a mode that it never found.
        target_accept: the acceptance that step sizes aim at; more makes smaller steps and fewer divergences.
        progress: show Pyro's progress bar.

    Raises:
        ValueError: a program without latent sites; one whose sites do not count once (see :func:`check_whole`); sites
            of single examples under a mask with padding, where their density is constant; too few draws or chains.

    Warns:
        ConvergenceWarning: the :attr:`Chains.problems`.
    """
    if num_samples < 4 or chains < 1:
        raise ValueError(f"need num_samples ≥ 4, for R̂, and chains ≥ 1; got {num_samples}, {chains}")
    trace = check_whole(model, batch)
    local = [name for name in trace.stochastic_nodes if trace.nodes[name]["infer"].get("local")]
    if not trace.stochastic_nodes:
        raise ValueError("this model draws nothing: there is no posterior to sample")
    unscored = [name for name in local if trace.nodes[name]["mask"] is False]
    if unscored:
        raise ValueError(
            f"{', '.join(unscored)}: alpha=0 leaves the density out, so that no chain is bounded; build the layer with "
            'collapsed=True, which draws no z_o, or with alpha=1 and regulariser_norm="example"'
        )
    if local and len(batch) > 2 and not batch[2].all():
        raise ValueError(
            f"{', '.join(local)}: no chain can run at padding; pass examples of one length, without a mask"
        )
    runs, divergences = [], 0
    with frozen(model), pyro.validation_enabled(False):  # a trajectory that overflows is rejected, not an error
        for _ in range(chains):
            kernel = NUTS(model, target_accept_prob=target_accept, init_strategy=init_to_sample)
            mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup, disable_progbar=not progress)
            mcmc.run(*batch)
            runs.append(mcmc.get_samples())
            divergences += len(mcmc.diagnostics()["divergences"]["chain 0"])
    grouped = {site: torch.stack([run[site] for run in runs]) for site in runs[0]}
    result = Chains(
        draws={site: each.flatten(0, 1) for site, each in grouped.items()},
        r_hat={site: split_gelman_rubin(each) for site, each in grouped.items()},
        effective={site: effective_sample_size(each) for site, each in grouped.items()},
        divergences=divergences,
    )
    if result.problems:
        warnings.warn("; ".join(result.problems) + ": take longer or more chains", ConvergenceWarning, stacklevel=2)
    return result
