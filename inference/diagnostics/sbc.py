"""Simulation-based calibration: is the inference right on average over data that the model itself makes?"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro.poutine as poutine
import scipy.stats
import torch
from torch import Tensor, nn

from probattn import guides
from probattn.inference.diagnostics.posterior_draws import posterior_draws
from probattn.inference.posterior.fit_guide import check_whole, fit_guide, frozen
from probattn.inference.posterior.nuts import nuts

Infer = Callable[..., Mapping[str, Tensor]]
"""A callable ``(x, y) -> draws``, or ``(x, y, mask) -> draws``, by site of shape ``(draws, *site)``."""

MOST_BINS, LEAST_EXPECTED = 20, 5


@dataclass(frozen=True, eq=False)
class SBC:
    """Ranks of the true values among draws of their posteriors; ``print`` it to read it.

    Args:
        ranks: the number of draws below the truth, in 0..L, ``(simulations, scalars)``.
        names: of the scalars, ``SITE[index, …]``.
        num_samples: L.
    """

    ranks: Tensor
    names: tuple[str, ...]
    num_samples: int

    def counts(self, bins: int | None = None) -> tuple[Tensor, Tensor]:
        """Histograms of the ranks.

        Args:
            bins: how many; by default at most 20 with 5 ranks or more expected in each.

        Returns:
            Counts ``(scalars, bins)``, and the number expected under uniformity ``(bins,)``: in proportion to the ranks
            that a bin holds, of which some hold one more where ``bins`` does not divide L + 1.

        Raises:
            ValueError: fewer than two bins, or more than there are ranks.
        """
        simulations, values = len(self.ranks), self.num_samples + 1
        bins = min(MOST_BINS, values, max(2, simulations // LEAST_EXPECTED)) if bins is None else bins
        if not 2 <= bins <= values:
            raise ValueError(f"bins must lie in 2..{values}, the number of ranks; got {bins}")
        member = torch.arange(values) * bins // values
        held = torch.nn.functional.one_hot(member[self.ranks], bins).sum(0)
        return held, simulations * torch.bincount(member).double() / values

    def p_values(self, bins: int | None = None) -> Tensor:
        """χ² test of the uniformity of each scalar's ranks, ``(scalars,)``; ``bins`` as for :meth:`counts`."""
        counts, expected = self.counts(bins)
        return torch.as_tensor(scipy.stats.chisquare(counts.numpy(), expected.numpy(), axis=1).pvalue)

    def p_value(self, bins: int | None = None) -> float:
        """The smallest p-value times their number (Bonferroni, as Holm's first step), which allows any dependence."""
        return min(1.0, len(self.names) * self.p_values(bins).min().item())

    def __str__(self) -> str:
        p_values = self.p_values()
        worst = p_values.argmin().item()
        return (
            f"{len(self.ranks)} simulations, ranks among {self.num_samples} draws of {len(self.names)} scalars: smallest "
            f"p-value {p_values[worst]:.3g} ({self.names[worst]}), for all together {self.p_value():.3g}"
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
    """Ranks of latent values drawn from the prior among draws of their posterior given labels drawn with them.

    Where the inference is exact, every rank is uniform on 0..L (Talts et al., 2018, theorem 1). Draws that are too
    narrow make a histogram like a U, too wide ones a hump, shifted ones a slope. What it cannot see is an inference
    that ignores the labels: the prior is calibrated, too. Penalties that weigh on latent sites of layers below theirs
    are part of the posterior and not of the simulation: set ``eta=0`` and ``alpha=0`` in stacks of layers.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, built for ``num_data`` of the inputs' number.
        inputs: x ``(n, ...)``, or ``(x, mask)``, the same in every simulation.
        infer: the inference in question: :func:`by_guide`, :func:`by_nuts`, or your own. Where it gives more than L
            draws, L of them at equal distances are taken: let chains give several times L, since draws that follow one
            another closely make ranks pile up at both ends.
        num_simulations: how many; each runs ``infer`` once.
        num_samples: L.
        sites: those to rank; by default all latent sites that ``infer`` gives draws of.

    Raises:
        ValueError: a site that the model does not draw, or draws of a wrong shape or too few, named.
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
                check_whole(model, (x, y, *mask))
        draws = infer(x, y, *mask)
        chosen = [name for name in truth if name in draws] if sites is None else list(sites)
        if not chosen:
            known = ", ".join(truth) or "none"
            raise ValueError(f"infer gave draws of no latent site of the model, which are: {known}")
        ranks.append({name: _rank(name, truth, draws, num_samples) for name in chosen})
    names = tuple(scalar for name, rank in ranks[0].items() for scalar in _scalars(name, rank.shape))
    table = torch.stack([torch.cat([rank.flatten() for rank in each.values()]) for each in ranks])
    return SBC(table.cpu(), names, num_samples)


def by_guide(model: nn.Module, guide: nn.Module, *, num_samples: int = 99, **options: Any) -> Infer:
    """Inference by a copy of the guide, fitted anew to each simulation.

    Args:
        model: the model.
        guide: a guide of this model, where each fit starts.
        num_samples: draws of the fitted guide.
        options: of :func:`~probattn.inference.posterior.fit_guide.fit_guide`.
    """

    def infer(*batch: Tensor) -> dict[str, Tensor]:
        guides.materialise(guide, batch)  # an AutoGuide without parameters cannot be copied
        twin, fitted = copy.deepcopy((model, guide))
        fit_guide(twin, fitted, batch, **options)
        return posterior_draws(twin, fitted, [batch], num_samples=num_samples)

    return infer


def by_nuts(model: nn.Module, **options: Any) -> Infer:
    """Inference by NUTS.

    Args:
        model: the model.
        options: of :func:`~probattn.inference.posterior.nuts.nuts`; ``num_samples`` several times the draws to rank among.
    """
    return lambda *batch: nuts(model, batch, **options).draws


def _rank(name: str, truth: Mapping[str, Tensor], draws: Mapping[str, Tensor], number: int) -> Tensor:
    if name not in truth or name not in draws:
        where = "the model draws" if name not in truth else "infer gives draws of"
        known = truth if name not in truth else draws
        raise ValueError(f"no site {name}; {where} {', '.join(known) or 'none'}")
    value, values = truth[name], draws[name]
    if len(values) < number or values.shape[1:] != value.shape:
        raise ValueError(
            f"infer must give at least {number} draws of {name}, shape (draws, {', '.join(map(str, value.shape))}); "
            f"got {tuple(values.shape)}"
        )
    thinned = values[torch.arange(number) * len(values) // number]
    return (thinned < value).sum(0)


def _scalars(name: str, shape: torch.Size) -> Iterator[str]:
    for index in np.ndindex(*shape):
        yield f"{name}[{', '.join(map(str, index))}]" if shape else name
