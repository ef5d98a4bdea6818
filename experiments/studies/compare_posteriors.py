"""Comparison of guides with reference draws of the posterior: moments, correlations and predictions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from probattn.inference.diagnostics.posterior_draws import record
from probattn.inference.prediction.predict import predict


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

    def __str__(self) -> str:
        lines = ["guide                     mean error  std ratio  correlation error  predictive TV  site"]
        for row in self.sites:
            numbers = f"{row.mean_error:10.3f}{row.std_ratio:11.3f}{row.correlation_error:19.3f}"
            lines.append(f"{row.guide:26}{numbers}{self.predictive[row.guide]:15.3f}  {row.site}")
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
        guides: fitted guides of this model by name (:func:`~probattn.inference.refit_guide`).
        batch: ``(x, y)`` or ``(x, y, mask)``; its inputs are used for predictions.
        reference: draws by site, such as those of Pyro's ``MCMC(NUTS(model), ...)``.
        num_samples: number of draws of each guide.

    Raises:
        ValueError: reference draws of other sites than the model's latent ones.
    """
    count = len(next(iter(reference.values()), ()))
    expected = predict(model, reference, [batch], num_samples=count, seed=0).probs
    sites, predictive = [], {}
    for name, guide in guides.items():
        with record(num_samples) as drawn:
            probs = predict(model, guide, [batch], num_samples=num_samples).probs
        predictive[name] = math.nan if expected is None else 0.5 * (probs - expected).abs().sum(-1).mean().item()
        for site, draws in drawn.latents.items():
            truth = reference[site].to(draws)
            error = (_correlations(draws) - _correlations(truth)).square().nanmean().sqrt().item()
            moments = draws.mean(0), draws.std(0), truth.mean(0), truth.std(0)
            sites.append(SiteComparison(name, site, *moments, correlation_error=error))
    return PosteriorComparison(tuple(sites), predictive)


def _correlations(draws: Tensor) -> Tensor:
    """Return the correlations of all pairs of scalars of draws ``(S, ...)``, NaN where a scalar is constant."""
    flat = draws.flatten(1)
    flat = flat.where(flat.amax(0) > flat.amin(0), torch.nan)  # the mean of equal numbers has a rounding error
    pairs = torch.triu_indices(flat.shape[1], flat.shape[1], offset=1)
    return torch.corrcoef(flat.T).reshape(flat.shape[1], -1)[*pairs]
