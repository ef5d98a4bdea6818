"""Posterior samples by NUTS, the reference for guides of small models."""

import warnings
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.infer.mcmc.util import diagnostics
from torch import Tensor, nn

from probattn.functional.errors import NumericalError
from probattn.inference.batches import unpack_batch
from probattn.inference.posterior.frozen import check_unit_scales, frozen

MAX_R_HAT, MIN_EFFECTIVE = 1.05, 100.0


class ConvergenceWarning(UserWarning):
    """Warning about Markov chains with convergence problems."""


@dataclass(frozen=True, eq=False)
class Chains:
    """Posterior draws of Markov chains, with convergence diagnostics.

    Args:
        draws: by site, concatenated over chains: ``(num_chains · num_samples, *event)`` of global sites,
            ``(num_chains · num_samples, n, *event)`` of local ones.
        r_hat: by site, split R̂ of each scalar (Gelman et al., 2013); 1 at convergence.
        effective: by site, effective sample size of each scalar.
        divergences: number of divergent transitions after warm-up.
    """

    draws: dict[str, Tensor]
    r_hat: dict[str, Tensor]
    effective: dict[str, Tensor]
    divergences: int

    @property
    def problems(self) -> tuple[str, ...]:
        """Descriptions of convergence problems; empty if there are none."""
        problems = [f"{self.divergences} transitions diverged"] if self.divergences else []
        for site, r_hats in self.r_hat.items():
            r_hat, effective = r_hats.max().item(), self.effective[site].min().item()
            if not (r_hat <= MAX_R_HAT and effective >= MIN_EFFECTIVE):  # NaN counts, too
                problems.append(f"{site} has R̂ up to {r_hat:.3g} and an effective sample size of {effective:.0f}")
        return tuple(problems)


def nuts(
    model: nn.Module,
    batch: tuple[Tensor, ...],
    *,
    num_samples: int = 1000,
    warmup_steps: int = 500,
    num_chains: int = 1,
    disable_progbar: bool = True,
    **options: Any,
) -> Chains:
    """Sample the posterior of all latent sites given the labels with Pyro's NUTS; weights and Λ are held fixed.

    The density is the program's log joint, as in the ELBO: priors of the latent sites, the likelihood of all labels,
    and penalties, which depend on latent sites of lower layers (``eta=0``, ``alpha=0`` remove them). For single layers
    the posterior is:

    - KEP-SVGP's ``u``: p(u | y), since its own KSVD penalty does not depend on u.
    - CGP's ``z_q`` with ``collapsed=True``: p(z_q | z_k, y). Guides use p(z_q | z_k) by design, so NUTS differs.
    - CGP's ``z_o`` and ``z_q`` with ``collapsed=False``: given z_k, y and the observed ``nu``, for ``alpha=1`` and
      ``regulariser_norm="example"``. Another weight w would raise the density of z_o to the power w, which is an error.
    - SGPA's ``g`` has the program's prior: independent tokens with ``draws="marginal"``, N(0, C) with ``"joint"``.

    Chains are initialised with samples from the prior and run sequentially, in evaluation mode. Use ``model.double()``:
    in float32 trajectories need smaller steps.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, built for ``num_data`` of the batch's size.
        batch: the whole data set, ``(x, y)`` or ``(x, y, mask)``.
        num_samples: draws of each chain, at least 4, for R̂.
        warmup_steps: discarded steps of each chain, which adapt step size and mass matrix.
        num_chains: number of chains; R̂ of a single one compares its halves and cannot detect a missed mode.
        disable_progbar: hide Pyro's progress bar.
        options: of Pyro's ``NUTS``. A higher ``target_accept_prob`` (0.8) takes smaller steps and diverges less;
            ``max_tree_depth`` (10) allows at most 2^depth − 1 steps of a trajectory.

    Raises:
        ValueError: a model without latent sites; scaled sites (see
            :func:`~probattn.inference.posterior.frozen.check_unit_scales`); local sites with padding, where their
            density is constant.

    Warns:
        ConvergenceWarning: the :attr:`Chains.problems`.
    """
    batch = unpack_batch(batch).arguments()
    trace = check_unit_scales(model, batch)
    if not trace.stochastic_nodes:
        raise ValueError("this model has no latent sites: there is no posterior to sample")
    is_padded = len(batch) > 2 and not batch[2].all()
    for name in trace.stochastic_nodes:
        site = trace.nodes[name]
        if site["infer"].get("local") and (is_padded or site["mask"] is False):
            raise ValueError(f"{name}: its posterior is improper, at padding or by alpha=0: see collapsed=True")

    def program(*args: Any) -> Any:
        """Run the model; Pyro rejects a trajectory that raises PyTorch's error of a singular matrix."""
        try:
            return model(*args)
        except NumericalError as error:
            raise RuntimeError(f"singular: {error}") from error

    runs, divergences = [], 0
    with frozen(model), pyro.validation_enabled(False):  # a trajectory that overflows is rejected, not an error
        for _ in range(num_chains):
            kernel = NUTS(program, init_strategy=init_to_sample, **options)
            mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup_steps, disable_progbar=disable_progbar)
            mcmc.run(*batch)
            runs.append(mcmc.get_samples(group_by_chain=True))
            divergences += len(mcmc.diagnostics()["divergences"]["chain 0"])
    draws = {site: torch.cat([run[site] for run in runs]) for site in runs[0]}
    quality = diagnostics(draws)
    chains = Chains(
        draws={site: values.flatten(0, 1) for site, values in draws.items()},
        r_hat={site: quality[site]["r_hat"] for site in draws},
        effective={site: quality[site]["n_eff"] for site in draws},
        divergences=divergences,
    )
    if chains.problems:
        warnings.warn("; ".join(chains.problems) + ": run longer or more chains", ConvergenceWarning, stacklevel=2)
    return chains
