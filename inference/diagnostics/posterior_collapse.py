"""Diagnostics of posterior collapse: distance of q from the prior, and its effect on predictions."""

from collections.abc import Iterable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from probattn.draws import at_mean
from probattn.families import has_stddev, robust_moments
from probattn.guides import Guide, latent_sites
from probattn.inference import metrics
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction


def posterior_summary(model: nn.Module, guide: Guide, *, num_samples: int = 100) -> list[dict[str, Any]]:
    """Summarise how far q(u) is from the prior, one row per global latent site.

    Args:
        model: the model.
        guide: a guide of :func:`probattn.guides.for_model`.
        num_samples: number of draws to estimate a KL without closed form.

    Returns:
        ``site``; ``kl`` in nats; ``size``, the number of scalars; ``prior_std`` and ``posterior_std``, averaged over
        scalars; ``std_ratio``, mean, smallest and largest ratio of the two over scalars; ``posterior_mean_rms``, root
        mean square of the posterior mean. Where moments do not exist (HalfCauchy), median and scaled median absolute
        deviation of draws.
    """
    if not isinstance(guide, Guide):
        raise TypeError(f"posterior_summary takes a guide of guides.for_model, got {type(guide).__name__}")
    with torch.no_grad():
        return [
            _summary(site, guide.get_submodule(site)(prior), prior, num_samples=num_samples)
            for site, prior in latent_sites(model)
        ]


def layer_posterior_summary(model: nn.Module) -> list[dict[str, Any]]:
    """Summarise the posteriors that layers hold themselves, with rows as in :func:`posterior_summary`.

    A layer says so by a method ``posterior_and_prior``, as
    :class:`~probattn.attention.kep_svgp_authors.AuthorsKEPSVGPAttention` does; its ``site`` is the layer's name and u.
    """
    with torch.no_grad():
        return [
            _summary(f"{name}.u", *module.posterior_and_prior(), num_samples=1)
            for name, module in model.named_modules()
            if hasattr(module, "posterior_and_prior")
        ]


def _summary(
    site: str, posterior: dist.TorchDistribution, prior: dist.TorchDistribution, *, num_samples: int
) -> dict[str, Any]:
    try:
        kl = kl_divergence(posterior, prior)
    except NotImplementedError:
        u = posterior.sample((num_samples,))
        kl = (posterior.log_prob(u) - prior.log_prob(u)).mean(0)
    (_, prior_std), (mean, std) = (
        (law.mean, law.stddev) if has_stddev(law) else robust_moments(law.sample((1001,))) for law in (prior, posterior)
    )
    return {
        "site": site,
        "kl": kl.sum().item(),
        "size": prior.event_shape.numel(),
        "prior_std": prior_std.mean().item(),
        "posterior_std": std.mean().item(),
        "std_ratio": spread(std / prior_std),
        "posterior_mean_rms": mean.square().mean().sqrt().item(),
    }


def spread(values: Tensor) -> tuple[float, float, float]:
    """Return mean, smallest and largest value."""
    return values.mean().item(), values.min().item(), values.max().item()


def posterior_variants(
    model: nn.Module, guide: nn.Module, data: Iterable, *, num_samples: int = 10, drawn: Prediction | None = None
) -> dict[str, dict[str, float]]:
    """Compute metrics with all latent sites, global and local, at the mean of q, drawn from q, and from the prior.

    With a collapsed posterior, predictions from q are as bad as from the prior; with a posterior close to a point, they
    equal those at the mean. A site whose posterior is its prior, such as the output of CGP attention, does not change.

    Args:
        model, guide: the model and its guide.
        data: batches ``(x, y)`` or ``(x, y, mask)``.
        num_samples: number of draws from q and from the prior.
        drawn: a prediction with draws from q, if it has already been computed.
    """
    with at_mean():
        mean = predict(model, guide, data, num_samples=1)
    variants = {
        "at its mean": mean,
        "drawn from q": drawn or predict(model, guide, data, num_samples=num_samples),
        "drawn from the prior": predict(model, None, data, num_samples=num_samples),
    }
    return {name: metrics.evaluate(prediction) for name, prediction in variants.items()}
