"""Simulation-based calibration (SBC): inference checked on data simulated from the model."""

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyro.poutine as poutine
import scipy.special
import torch
from torch import Tensor, nn

from probattn.inference import guide_checks
from probattn.inference.diagnostics.posterior_draws import posterior_draws
from probattn.inference.posterior.fit_guide import fit_guide
from probattn.inference.posterior.frozen import frozen
from probattn.inference.posterior.nuts import nuts
from probattn.inference.posterior.unit_scales import check_unit_scales

Infer = Callable[..., Mapping[str, Tensor]]
"""A callable ``(x, y) -> draws`` or ``(x, y, mask) -> draws``; draws by site, of shape ``(draws, *site)``."""

MAX_BINS, MIN_EXPECTED_COUNT = 20, 5


@dataclass(frozen=True, eq=False)
class SBC:
    """Ranks of the true values among draws of their posteriors; ``print`` displays a summary.

    Args:
        ranks: number of draws below the true value, in 0..L, ``(simulations, scalars)``.
        names: names of the scalars, ``SITE[index, …]``.
        num_samples: L.
    """

    ranks: Tensor
    names: tuple[str, ...]
    num_samples: int

    def counts(self, bins: int | None = None) -> tuple[Tensor, Tensor]:
        """Return histograms of the ranks.

        Args:
            bins: number of bins; by default at most 20, with an expected count of at least 5.

        Returns:
            Counts ``(scalars, bins)``, and the expected counts under uniformity ``(bins,)``: proportional to the number
            of ranks in a bin, which varies by one if ``bins`` does not divide L + 1.

        Raises:
            ValueError: fewer than two bins, or more than L + 1.
        """
        simulations, values = len(self.ranks), self.num_samples + 1
        bins = min(MAX_BINS, values, max(2, simulations // MIN_EXPECTED_COUNT)) if bins is None else bins
        if not 2 <= bins <= values:
            raise ValueError(f"bins must lie in 2..{values}, the number of ranks; got {bins}")
        bin_of_rank = torch.arange(values) * bins // values
        counts = torch.nn.functional.one_hot(bin_of_rank[self.ranks], bins).sum(0)
        return counts, simulations * torch.bincount(bin_of_rank).double() / values

    def p_values(self, bins: int | None = None) -> Tensor:
        """Return p-values of the χ² test of uniformity of each scalar's ranks, ``(scalars,)``; see :meth:`counts`."""
        counts, expected = self.counts(bins)
        statistics = ((counts - expected).square() / expected).sum(1)
        return torch.as_tensor(scipy.special.chdtrc(len(expected) - 1, statistics.numpy()))

    def p_value(self, bins: int | None = None) -> float:
        """Return the Bonferroni-corrected smallest p-value, valid under any dependence of the scalars."""
        return min(1.0, len(self.names) * self.p_values(bins).min().item())

    def __str__(self) -> str:
        p_values = self.p_values()
        worst = p_values.argmin().item()
        return (
            f"{len(self.ranks)} simulations, ranks among {self.num_samples} draws of {len(self.names)} scalars: "
            f"smallest p-value {p_values[worst]:.3g} ({self.names[worst]}), Bonferroni-corrected {self.p_value():.3g}"
        )


def simulation_based_calibration(
    model: nn.Module,
    inputs: Tensor | tuple[Tensor, Tensor],
    infer: Infer,
    *,
    num_simulations: int = 100,
    num_samples: int = 99,
    sites: Collection[str] | None = None,
) -> SBC:
    """Rank latent values drawn from the prior among draws of their posterior given the labels simulated with them.

    With exact inference, every rank is uniform on 0..L (Talts et al., 2018, theorem 1). Rank histograms have the shape
    of a U for overconfident (too narrow) posteriors, of a hump for too wide ones, and a slope for biased ones. SBC does
    not detect inference that ignores the labels, since the prior is calibrated, too. Penalties that depend on latent
    sites of lower layers are part of the posterior but not of the simulation: set ``eta=0`` and ``alpha=0`` in stacks
    of layers.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, built for ``num_data`` equal to the number of inputs.
        inputs: x ``(n, ...)``, or ``(x, mask)``, the same in every simulation.
        infer: the inference to check: :func:`~probattn.inference.guide_inference`,
            :func:`~probattn.inference.nuts_inference`, or your own. Of more than L draws, L are taken at equal
            intervals: run chains for several times L, since autocorrelated draws accumulate ranks at both ends.
        num_simulations: number of simulations; each calls ``infer`` once.
        num_samples: L.
        sites: sites to rank; by default all latent sites that ``infer`` returns draws of.

    Raises:
        ValueError: an unknown site, or draws of a wrong shape or too few; the message names the site.
    """
    if min(num_simulations, num_samples) < 1:
        raise ValueError(f"need num_simulations ≥ 1 and num_samples ≥ 1; got {num_simulations}, {num_samples}")
    x, *mask = (inputs,) if isinstance(inputs, Tensor) else inputs
    ranks = []
    for _ in range(num_simulations):
        with frozen(model), torch.no_grad(), poutine.mask(mask=False):
            trace = poutine.trace(model).get_trace(x, None, *mask)
            truth = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
            y = truth.pop("y")
            if not ranks:
                check_unit_scales(model, (x, y, *mask))
        draws = infer(x, y, *mask)
        chosen = [name for name in truth if name in draws] if sites is None else list(sites)
        if not chosen:
            known = ", ".join(truth) or "none"
            raise ValueError(f"infer returned no draws of the latent sites of the model: {known}")
        ranks.append({name: _rank(name, truth, draws, num_samples) for name in chosen})
    names = tuple(scalar for name, rank in ranks[0].items() for scalar in _scalars(name, rank.shape))
    table = torch.stack([torch.cat([rank.flatten() for rank in each.values()]) for each in ranks])
    return SBC(table.cpu(), names, num_samples)


def guide_inference(
    model: nn.Module, guide: nn.Module, *, num_samples: int = 99, steps: int = 1000, lr: float = 0.05
) -> Infer:
    """Return inference by variational inference: ``num_samples`` draws of a guide that is fitted to each simulation.

    Each fit starts from a copy of ``guide``; for ``steps`` and ``lr`` see :func:`~probattn.inference.fit_guide`.
    """

    def infer(*batch: Tensor) -> dict[str, Tensor]:
        guide_checks.materialise(guide, batch)  # an AutoGuide without parameters cannot be copied
        model_copy, guide_copy = copy.deepcopy((model, guide))
        fit_guide(model_copy, guide_copy, batch, steps=steps, lr=lr)
        return posterior_draws(model_copy, guide_copy, [batch], num_samples=num_samples)

    return infer


def nuts_inference(
    model: nn.Module,
    *,
    num_samples: int = 1000,
    warmup_steps: int = 500,
    target_accept_prob: float = 0.8,
    max_tree_depth: int = 10,
) -> Infer:
    """Return inference by :func:`~probattn.inference.nuts`; use ``num_samples`` several times the draws to rank."""
    run = functools.partial(
        nuts,
        num_samples=num_samples,
        warmup_steps=warmup_steps,
        target_accept_prob=target_accept_prob,
        max_tree_depth=max_tree_depth,
    )
    return lambda *batch: run(model, batch).draws


def _rank(name: str, truth: Mapping[str, Tensor], draws: Mapping[str, Tensor], number: int) -> Tensor:
    if name not in truth or name not in draws:
        where = "latent sites of the model are" if name not in truth else "infer returns draws of"
        known = truth if name not in truth else draws
        raise ValueError(f"no site {name}; {where} {', '.join(known) or 'none'}")
    value, values = truth[name], draws[name]
    if len(values) < number or values.shape[1:] != value.shape:
        raise ValueError(
            f"infer must return at least {number} draws of {name}, shape (draws, {', '.join(map(str, value.shape))}); "
            f"got {tuple(values.shape)}"
        )
    thinned = values[torch.arange(number) * len(values) // number]
    return (thinned < value).sum(0)


def _scalars(name: str, shape: torch.Size) -> Iterator[str]:
    for index in np.ndindex(*shape):
        yield f"{name}[{', '.join(map(str, index))}]" if shape else name
