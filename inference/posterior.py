"""Is the posterior alive? What a guide has learned about each site, and what it does to predictions."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributions import kl_divergence

from probattn.guides import Guide, latent_sites
from probattn.handlers import at_mean
from probattn.inference import metrics
from probattn.inference.prediction import Prediction, predict


def posterior_summary(model: nn.Module, guide: Guide, *, kl_draws: int = 100) -> list[dict[str, Any]]:
    """One row a latent site: how far q(u) is from its prior.

    Args:
        model: the model.
        guide: a guide of :func:`probattn.guides.for_model`.
        kl_draws: draws that estimate a KL without closed form.

    Returns:
        ``site``; ``kl`` in nats; ``size``, its number of scalars; ``prior_std`` and ``posterior_std``, averaged over
        scalars; ``posterior_mean_rms``, root mean square of the posterior mean.
    """
    if not isinstance(guide, Guide):
        raise TypeError(f"posterior_summary takes a guide of guides.for_model, got {type(guide).__name__}")
    rows = []
    with torch.no_grad():
        for site, prior in latent_sites(model):
            posterior = guide.get_submodule(site)(prior)
            try:
                kl = kl_divergence(posterior, prior)
            except NotImplementedError:
                u = posterior.sample((kl_draws,))
                kl = (posterior.log_prob(u) - prior.log_prob(u)).mean(0)
            rows.append(
                {
                    "site": site,
                    "kl": kl.sum().item(),
                    "size": prior.event_shape.numel(),
                    "prior_std": prior.stddev.mean().item(),
                    "posterior_std": posterior.stddev.mean().item(),
                    "posterior_mean_rms": posterior.mean.square().mean().sqrt().item(),
                }
            )
    return rows


def posterior_variants(
    model: nn.Module, guide: nn.Module, data: Iterable, *, num_draws: int = 10, drawn: Prediction | None = None
) -> dict[str, dict[str, float]]:
    """Metrics with u at the mean of q, drawn from q, and drawn from the prior.

    A posterior that has collapsed predicts as badly from q as from the prior; one that is a point predicts from q as
    at the mean.

    Args:
        model, guide: a classifier and its guide.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_draws: draws from q and from the prior.
        drawn: a prediction with draws from q, where there is one already.
    """
    with at_mean():
        mean = predict(model, guide, data, num_draws=1)
    variants = {
        "at its mean": mean,
        "drawn from q": drawn or predict(model, guide, data, num_draws=num_draws),
        "drawn from the prior": predict(model, None, data, num_draws=num_draws),
    }
    return {name: metrics.evaluate(prediction.probs, prediction.labels) for name, prediction in variants.items()}
