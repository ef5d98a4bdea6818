"""Importance ratios of guides, against closed forms and against the tails that theory gives."""

import math

import pyro.distributions as dist
import pytest
import torch
from arviz_stats.base import array_stats
from conjugate import F64, NOISE, conjugate, evidence, gaussian_guide, posterior
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoMultivariateNormal
from torch.distributions import transform_to

from probattn import SGPAttention, guides
from probattn.inference.diagnostics.psis import psis_khat
from probattn.models import Supervised


@pytest.mark.parametrize("spread", [0.4, 1.2])
def test_log_weights_are_those_of_the_two_densities(spread):
    """log p(u | y) + log p(y) − log q(u) at every draw."""
    model, x, y = conjugate()
    mean, covariance = posterior(model, x, y)
    guide, values = gaussian_guide(model, mean, spread**2 * covariance), []
    guide.register_forward_hook(lambda module, args, latents: values.append(latents["network.u"].detach()))
    result = psis_khat(model, guide, (x, y), num_samples=85)
    p, q = (dist.MultivariateNormal(mean, factor**2 * covariance) for factor in (1, spread))
    u = torch.stack(values)
    expected = (p.log_prob(u) - q.log_prob(u)).sum((-2, -1)) + evidence(model, x, y)
    torch.testing.assert_close(result.log_weights, expected, rtol=1e-9, atol=0)


def test_too_narrow_a_guide_is_found_and_a_slightly_wide_one_is_good():
    """Ratios of N(0, 1) over N(0, s²) have tails of shape 1 − s² for s < 1, and are bounded for s > 1."""
    model, x, y = conjugate()
    mean, covariance = posterior(model, x, y)
    narrow, wide = (
        psis_khat(model, gaussian_guide(model, mean, s**2 * covariance), (x, y), num_samples=400) for s in (0.3, 1.2)
    )
    assert narrow.khat > 0.7
    assert narrow.ess < 80
    assert wide.khat < 0.4
    assert wide.ess > 280
    smoothed, khat = array_stats.psislw(-narrow.log_weights.numpy())
    assert narrow.khat == pytest.approx(float(khat))
    torch.testing.assert_close(narrow.smoothed, torch.as_tensor(smoothed))


def first_rows(layer, *, num_data=2):
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(2))
        layer.out.bias.zero_()
    model = Supervised(layer, lambda f: dist.Normal(f, NOISE).to_event(2), num_data=num_data).double()
    return model, torch.randn(num_data, 3, 2, dtype=F64), torch.randn(num_data, 3, 2, dtype=F64)


def estimated_evidence(model, guide, x, y, *, num_samples):
    weights = psis_khat(model, guide, (x, y), num_samples=num_samples).log_weights
    return (weights.logsumexp(0) - math.log(num_samples)).item()


@pytest.mark.parametrize("drawn", ["joint", "marginal"])
def test_sgpa_counts_the_density_of_what_it_draws(drawn):
    """E w is the evidence of the program: y = A u + g + noise, jointly Gaussian; marginal draws have diagonal C."""
    model, x, y = first_rows(SGPAttention(2, 1, inducing=1, draws=drawn), num_data=1)
    layer = model.network
    with torch.no_grad():
        layer.query_value.weight[2:].mul_(0.3)
        a, _ = layer.form._mean(layer, layer._tokens(*layer.split_heads(layer.query_value(x), 2), None))
        a = a[0, 0]
        c = layer.attention_matrix(x)[0, 0] - a @ a.T
        c = c if drawn == "joint" else torch.diag(c.diag())
        covariance = a @ a.T + c + NOISE**2 * torch.eye(3, dtype=F64)
        expected = dist.MultivariateNormal(torch.zeros(3, dtype=F64), covariance).log_prob(y[0].T).sum()
        guide = guides.for_model(model)
        guide.network.u.loc.zero_()
        raw = transform_to(constraints.softplus_lower_cholesky).inv(torch.ones(1, 1, dtype=F64))
        guide.network.u.raw_tril.copy_(raw.expand(1, 2, 1, 1))
    assert estimated_evidence(model, guide, x, y, num_samples=600) == pytest.approx(expected.item(), abs=0.25)


def test_an_autoguide_over_one_vector_has_a_density_and_a_point_mass_none():
    model, x, y = conjugate()
    guide = AutoMultivariateNormal(model, init_scale=0.8)
    expected = evidence(model, x, y).item()
    assert estimated_evidence(model, guide, x, y, num_samples=200) == pytest.approx(expected, abs=1.0)
    model.network.log_scale.requires_grad_(False)
    with pytest.raises(ValueError, match="point mass"):
        psis_khat(model, guides.for_model(model, "delta"), (x, y), num_samples=100)
