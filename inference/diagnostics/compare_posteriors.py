"""Comparison of guides with reference draws of the posterior: moments, correlations and predictions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from probattn.inference.diagnostics.posterior_draws import record
from probattn.inference.posterior.frozen import frozen
from probattn.inference.prediction.predict import CPU_CHUNK_SIZE, predict
from probattn.messages import is_global_latent, is_latent


@dataclass(frozen=True, eq=False)
class SiteComparison:
    """Comparison of a guide's draws of one site with the reference; scalars constant there (padding) are ignored.

    Args:
        guide, site: names.
        mean, std: of the guide's draws, for each scalar.
        reference_mean, reference_std: of the reference's draws, for each scalar.
        correlation_error: root mean square difference of the correlations between the site's scalars; NaN for a single
            scalar or a point mass.
    """

    guide: str
    site: str
    mean: Tensor
    std: Tensor
    reference_mean: Tensor
    reference_std: Tensor
    correlation_error: float

    @property
    def mean_error(self) -> float:
        """Root mean square error of the posterior mean, in posterior standard deviations."""
        error = (self.mean - self.reference_mean) / self.reference_std
        return error[self.reference_std > 0].square().mean().sqrt().item()

    @property
    def std_ratio(self) -> float:
        """Ratio of the guide's to the reference's standard deviation, averaged over scalars; ideally 1."""
        return (self.std / self.reference_std)[self.reference_std > 0].mean().item()


@dataclass(frozen=True, eq=False)
class PosteriorComparison:
    """Comparison of all guides with the reference; ``print`` displays a table.

    Args:
        sites: one entry per guide and site.
        predictive: by guide, the total variation distance of the predictive probabilities to the reference's, averaged
            over examples, in [0, 1]; NaN for likelihoods other than categorical.
    """

    sites: tuple[SiteComparison, ...]
    predictive: dict[str, float]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per guide and site: ``mean_error``, ``std_ratio``, ``correlation_error``, ``predictive``."""
        keys = ("guide", "site", "mean_error", "std_ratio", "correlation_error")
        return [
            {key: getattr(each, key) for key in keys} | {"predictive": self.predictive[each.guide]}
            for each in self.sites
        ]

    def __str__(self) -> str:
        rows = self.rows()
        guides, sites = (max(len(key), *(len(row[key]) for row in rows)) for key in ("guide", "site"))
        lines = [f"{'guide':{guides}}  {'site':{sites}}  mean error  std ratio  correlation error  predictive TV"]
        for row in rows:
            numbers = (row["mean_error"], row["std_ratio"], row["correlation_error"], row["predictive"])
            cells = (f"{number:{width}.3f}" for number, width in zip(numbers, (10, 9, 17, 13), strict=True))
            lines.append(f"{row['guide']:{guides}}  {row['site']:{sites}}  {'  '.join(cells)}")
        return "\n".join(lines)


def compare_posteriors(
    model: nn.Module,
    guides: Mapping[str, nn.Module],
    batch: tuple[Tensor, ...],
    *,
    reference: Mapping[str, Tensor],
    num_samples: int = 1000,
) -> PosteriorComparison:
    """Compare draws of guides, and the resulting predictions, with reference draws of the posterior.

    With S independent draws, the mean error of an exact guide is still about S^−½ standard deviations.

    Args:
        model: the model.
        guides: fitted guides of this model by name (:func:`~probattn.inference.fit_guide`).
        batch: ``(x, y)`` or ``(x, y, mask)``; its inputs are used for predictions.
        reference: draws by site, such as ``nuts(...).draws``.
        num_samples: number of draws of each guide.

    Raises:
        ValueError: a latent site without reference draws.
    """
    expected = _class_probabilities(model, batch, reference)
    sites, predictive = [], {}
    for name, guide in guides.items():
        with record() as drawn:
            probs = predict(model, guide, [batch], num_samples=num_samples).probs
        predictive[name] = math.nan if expected is None else 0.5 * (probs - expected).abs().sum(-1).mean().item()
        for site, draws in drawn.latents.items():
            sites.append(_compare(name, site, draws, reference[site].to(draws)))
    return PosteriorComparison(tuple(sites), predictive)


def _compare(guide: str, site: str, draws: Tensor, reference: Tensor) -> SiteComparison:
    ours, theirs = _correlations(draws), _correlations(reference)
    return SiteComparison(
        guide,
        site,
        *(draws.mean(0), draws.std(0), reference.mean(0), reference.std(0)),
        correlation_error=(ours - theirs).square().nanmean().sqrt().item(),
    )


def _correlations(draws: Tensor) -> Tensor:
    """Return the correlations of all pairs of scalars of draws ``(S, ...)``, NaN where a scalar is constant."""
    flat = draws.flatten(1)
    flat = flat.where(flat.amax(0) > flat.amin(0), torch.nan)  # the mean of equal numbers has a rounding error
    pairs = torch.triu_indices(flat.shape[1], flat.shape[1], offset=1)
    return torch.corrcoef(flat.T).reshape(flat.shape[1], -1)[*pairs]


@torch.no_grad()
def _class_probabilities(model: nn.Module, batch: tuple[Tensor, ...], reference: Mapping[str, Tensor]) -> Tensor | None:
    """Return mean class probabilities ``(n, classes)`` over the reference's draws; None for other likelihoods."""
    x, _, *mask = batch
    with frozen(model), poutine.mask(mask=False):
        prior = poutine.trace(model).get_trace(x, None, *mask)
        shared = {}
        for name in prior.stochastic_nodes:
            if name == "y" or not is_latent(prior.nodes[name]):  # a plate of the model is a node, too
                continue
            if name not in reference:
                raise ValueError(f"the reference has no draws of site {name}, only of {', '.join(reference) or 'none'}")
            shared[name] = is_global_latent(prior.nodes[name], prior)
        if not shared:
            raise ValueError("this model has no latent sites: there is no posterior to compare")
        total, count = 0.0, 0
        size = max(1, CPU_CHUNK_SIZE // len(x))
        for parts in zip(*(reference[name].split(size) for name in shared), strict=True):
            draws = zip(shared.items(), parts, strict=True)
            values = {name: part.unsqueeze(1) if is_global else part for (name, is_global), part in draws}
            trace = poutine.trace(poutine.condition(model, data=values)).get_trace(x, None, *mask)
            probs = getattr(trace.nodes["y"]["fn"], "probs", None)
            if probs is None:
                return None
            total, count = total + probs.sum(0), count + len(probs)
    return total / count
