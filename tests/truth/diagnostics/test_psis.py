"""Importance ratios of guides, against closed forms and against the tails that theory gives."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from arviz_stats.base import array_stats
from conjugate import (
    conjugate,
    evidence,
    gaussian_guide,
    posterior,
)
from float64 import tensor64
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import nn
from torch.testing import assert_close

from probattn import guides, local_site, local_sites
from probattn.inference import materialise
from probattn.inference.diagnostics.psis import psis_khat


@pytest.mark.parametrize("spread", [0.4, 1.2])
def test_log_weights_are_those_of_the_two_densities(spread):
    """log p(u | y) + log p(y) − log q(u) at every draw."""
    model, x, y = conjugate()
    mean, covariance = posterior(model, x, y)
    guide, values = gaussian_guide(model, mean, spread**2 * covariance), []
    guide.register_forward_hook(
        lambda module, args, latents: values.append(latents["network.u"].detach())
    )
    result = psis_khat(model, guide, (x, y), num_samples=85)
    p, q = (dist.MultivariateNormal(mean, factor**2 * covariance) for factor in (1, spread))
    u = torch.stack(values)
    expected = (p.log_prob(u) - q.log_prob(u)).sum((-2, -1)) + evidence(model, x, y)
    assert_close(result.log_weights, expected, rtol=1e-9, atol=0)


def test_too_narrow_a_guide_is_found_and_a_slightly_wide_one_is_good():
    """Ratios of N(0, 1) over N(0, s²) have tails of shape 1 − s² for s < 1, and are bounded for s >
    1."""
    model, x, y = conjugate()
    mean, covariance = posterior(model, x, y)
    narrow, wide = (
        psis_khat(model, gaussian_guide(model, mean, s**2 * covariance), (x, y), num_samples=400)
        for s in (0.3, 1.2)
    )
    assert narrow.khat > 0.7
    assert narrow.ess < 80
    assert wide.khat < 0.4
    assert wide.ess > 280
    smoothed, khat = array_stats.psislw(-narrow.log_weights.numpy())
    assert narrow.khat == pytest.approx(float(khat))
    assert_close(narrow.smoothed, torch.as_tensor(smoothed))


class Amortised(nn.Module):
    """u ~ N(0, 1); z ~ N(u, 1) of each example, with the posterior N(x, ½²); y ~ N(z, 0.7²)."""

    num_data = 3

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x, y=None):
        u = pyro.sample("u", dist.Normal(x.new_zeros(()), 1.0))
        with local_sites(batch=len(x), num_data=len(x)):
            infer = local_site(dist.Normal(x, 0.5))
            z = pyro.sample("z", dist.Normal(u.expand(len(x)), 1.0), infer=infer)
            self.seen.append((u, z))
            return pyro.sample("y", dist.Normal(z, 0.7), obs=y, infer=local_site())


class OfU(nn.Module):
    def forward(self, x, y=None):
        pyro.sample("u", dist.Normal(x.new_tensor(0.3), 0.8))


def test_local_sites_are_weighted_by_the_posterior_that_they_are_drawn_from():
    x, y = tensor64([[0.2, -0.3, 0.9], [0.5, 0.1, 1.2]])
    model = Amortised()
    result = psis_khat(model, OfU(), (x, y), num_samples=100)
    u, z = (torch.stack(values) for values in zip(*model.seen[-100:], strict=True))
    joint = dist.Normal(0.0, 1.0).log_prob(u) + (
        dist.Normal(u.unsqueeze(-1), 1.0).log_prob(z) + dist.Normal(z, 0.7).log_prob(y)
    ).sum(-1)
    drawn_from = dist.Normal(0.3, 0.8).log_prob(u) + dist.Normal(x, 0.5).log_prob(z).sum(-1)
    assert_close(result.log_weights, joint - drawn_from)


def test_an_autoguide_over_one_vector_has_a_density_and_a_point_mass_none():
    model, x, y = conjugate()
    guide, values = AutoMultivariateNormal(model, init_scale=0.8), []
    materialise(guide, (x, y))
    guide.register_forward_hook(
        lambda module, args, latents: values.append(latents["network.u"].detach())
    )
    result = psis_khat(model, guide, (x, y), num_samples=100)
    u, (mean, covariance) = torch.stack(values[-100:]), posterior(model, x, y)
    p, q = dist.MultivariateNormal(mean, covariance), guide.get_posterior()
    expected = p.log_prob(u).sum((-2, -1)) - q.log_prob(u.flatten(1)) + evidence(model, x, y)
    assert_close(result.log_weights, expected.detach())
    model.network.log_scale.requires_grad_(False)
    with pytest.raises(ValueError, match="point mass"):
        psis_khat(model, guides.for_model(model, "delta"), (x, y), num_samples=100)
