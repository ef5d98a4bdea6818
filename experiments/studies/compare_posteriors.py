"""Comparison of guides with reference draws of the posterior: moments, correlations and predictions."""

import math
from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor, nn

from probattn.inference.diagnostics.posterior_draws import record
from probattn.inference.prediction.predict import predict


def compare_posteriors(
    model: nn.Module,
    guides: Mapping[str, nn.Module],
    batch: tuple[Tensor, ...],
    *,
    reference: Mapping[str, Tensor],
    num_samples: int = 1000,
) -> pd.DataFrame:
    """Compare draws of guides, and the resulting predictions, with reference draws of the posterior.

    With S independent draws, the mean error of an exact guide is still about S^−½ standard deviations. Scalars that are
    constant in the reference (padding) are ignored.

    Args:
        model: the model.
        guides: fitted guides of this model by name (:func:`~probattn.inference.refit_guide`).
        batch: ``(x, y)`` or ``(x, y, mask)``; its inputs are used for predictions.
        reference: draws by site, such as those of Pyro's ``MCMC(NUTS(model), ...)``.
        num_samples: number of draws of each guide.

    Returns:
        A row for each guide and site, with columns

        - ``guide``, ``site``;
        - ``mean_error``: root mean square error of the posterior mean, in posterior standard deviations;
        - ``std_ratio``: ratio of the guide's to the reference's standard deviation, a mean over scalars, ideally 1;
        - ``correlation_error``: root mean square difference of the correlations between the site's scalars, NaN for a
          single scalar or a point mass;
        - ``predictive``: total variation distance of the predictive probabilities of the guide to the reference's, a
          mean over examples, in [0, 1]; NaN for likelihoods other than categorical.

    Raises:
        KeyError: reference draws of other sites than the model's latent ones.
    """
    count = len(next(iter(reference.values()), ()))
    expected, rows = predict(model, reference, [batch], num_samples=count, seed=0).probs, []
    for name, guide in guides.items():
        with record(num_samples) as drawn:
            probs = predict(model, guide, [batch], num_samples=num_samples).probs
        distance = math.nan if expected is None else 0.5 * (probs - expected).abs().sum(-1).mean().item()
        for site, draws in drawn.latents.items():
            truth = reference[site].to(draws)
            std, varies = truth.std(0), truth.std(0) > 0
            measures = {
                "mean_error": ((draws.mean(0) - truth.mean(0)) / std)[varies].square().mean().sqrt(),
                "std_ratio": (draws.std(0) / std)[varies].mean(),
                "correlation_error": (_correlations(draws) - _correlations(truth)).square().nanmean().sqrt(),
            }
            values = {key: value.item() for key, value in measures.items()}
            rows.append({"guide": name, "site": site, **values, "predictive": distance})
    return pd.DataFrame(rows)


def _correlations(draws: Tensor) -> Tensor:
    """Return the correlations of all pairs of scalars of draws ``(S, ...)``, NaN where a scalar is constant."""
    flat = draws.flatten(1)
    flat = flat.where(flat.amax(0) > flat.amin(0), torch.nan)  # the mean of equal numbers has a rounding error
    pairs = torch.triu_indices(flat.shape[1], flat.shape[1], offset=1)
    return torch.corrcoef(flat.T).reshape(flat.shape[1], -1)[*pairs]
