"""Simulation-based calibration (SBC): inference checked on data simulated from the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from probattn.inference.posterior.frozen import check_unit_scales, frozen
from probattn.inference.prediction.latents import thinned
from probattn.messages import value_of
from probattn.threads import one_thread_at_a_time

Infer = Callable[..., Mapping[str, Tensor]]
"""A callable ``(x, y) -> draws`` or ``(x, y, mask) -> draws``; draws by site, of shape
``(draws, *site)``."""


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

    def counts(self) -> tuple[Tensor, Tensor]:
        """Return histograms of the ranks, of at most 20 bins with an expected count of at least 5.

        Returns:
            Counts ``(scalars, bins)``, and the expected counts under uniformity ``(bins,)``:
            proportional to the number of ranks in a bin, which varies by one if the number of bins
            does not divide L + 1.
        """
        simulations = len(self.ranks)
        values = self.num_samples + 1
        bins = min(20, values, max(2, simulations // 5))
        bin_of_rank = torch.arange(values) * bins // values
        counts = torch.nn.functional.one_hot(bin_of_rank[self.ranks], bins).sum(0)
        return counts, simulations * torch.bincount(bin_of_rank).double() / values

    def p_values(self) -> Tensor:
        """Return p-values of the χ² test of uniformity of each scalar's ranks, ``(scalars,)``; see
        :meth:`counts`."""
        from scipy.stats import chisquare  # here, since its import takes half a second

        counts, expected = self.counts()
        return torch.as_tensor(chisquare(counts.double(), expected, axis=1).pvalue)

    def p_value(self) -> float:
        """Return the Bonferroni-corrected smallest p-value, valid under any dependence of the
        scalars."""
        return min(1.0, len(self.names) * self.p_values().min().item())

    def __str__(self) -> str:
        smallest, worst = self.p_values().min(0)
        size = f"{len(self.ranks)} simulations, {self.num_samples} draws, {len(self.names)} scalars"
        where = self.names[worst]
        corrected = f"corrected {self.p_value():.3g}"
        return f"{size}: smallest p-value {smallest:.3g} ({where}), {corrected}"


@one_thread_at_a_time
def simulation_based_calibration(
    model: nn.Module,
    inputs: Tensor | tuple[Tensor, Tensor],
    infer: Infer,
    *,
    num_simulations: int = 100,
    num_samples: int = 99,
) -> SBC:
    """Rank latent values drawn from the prior among draws of their posterior given the labels
    simulated with them.

    With exact inference, every rank is uniform on 0..L (Talts et al., 2018, theorem 1). Rank
    histograms have the shape of a U for overconfident (too narrow) posteriors, of a hump for too
    wide ones, and a slope for biased ones. SBC does not detect inference that ignores the labels,
    since the prior is calibrated, too. Penalties that depend on latent sites of lower layers are
    part of the posterior but not of the simulation: set ``eta=0`` and ``alpha=0`` in stacks of
    layers.

    Args:
        model: e.g. :class:`~probattn.models.Supervised`, built for ``num_data`` equal to the number
            of inputs.
        inputs: x ``(n, ...)``, or ``(x, mask)``, the same in every simulation.
        infer: the inference to check, ``(x, y) -> draws``, such as
            ``lambda *batch: sgld(model, [batch], num_samples=400)``. Of more than L draws, L are
            taken at equal intervals: run chains for several times L, since autocorrelated draws
            accumulate ranks at both ends.
        num_simulations: number of simulations; each calls ``infer`` once.
        num_samples: L.

    Raises:
        ValueError: draws of a wrong shape, or too few.
    """
    x, *mask = (inputs,) if isinstance(inputs, Tensor) else inputs
    ranks: list[Tensor] = []
    for _ in range(num_simulations):
        with frozen(model), torch.no_grad(), poutine.mask(mask=False):
            trace = poutine.trace(model).get_trace(x, None, *mask)
        batch = (x, value_of(trace.nodes["y"]), *mask)
        if not ranks:
            check_unit_scales(model, batch)
        row = {}
        for name, draws in infer(*batch).items():
            truth = value_of(trace.nodes[name])
            if len(draws) < num_samples or draws.shape[1:] != truth.shape:
                raise ValueError(
                    f"draws of {name} have shape {tuple(draws.shape)}, its values "
                    f"{tuple(truth.shape)}"
                )
            row[name] = (thinned(draws, num_samples) < truth).sum(0)
        ranks.append(torch.cat([rank.flatten() for rank in row.values()]))
    scalars = []
    for name, rank in row.items():
        scalars += [f"{name}{list(index)}" for index in np.ndindex(*rank.shape)]
    return SBC(torch.stack(ranks).cpu(), tuple(scalars), num_samples)
