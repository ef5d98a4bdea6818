"""Importance ratios of guides, against closed forms and against the tails that theory gives."""

import math

import pyro.distributions as dist
import pytest
import torch
from arviz_stats.base import array_stats
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoMultivariateNormal
from torch.distributions import transform_to

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, guides
from probattn.inference.diagnostics.psis import psis_khat
from probattn.models import Supervised

F64, NOISE = torch.float64, 0.8


def conjugate(*, eta=0.0):
    """y = F + noise, F = (E + R) Λ⁻¹ u."""
    layer = KEPSVGPAttention(2, 1, rank=2, eta=eta)
    model = Supervised(layer, lambda f: dist.Normal(f, NOISE).to_event(2), num_data=3).double()
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(2))
        layer.out.bias.zero_()
        layer.log_scale.copy_(torch.tensor([[0.3, -0.4]]))
        x = torch.randn(3, 4, 2, dtype=F64) + 0.5
        return model, x, model(x)


def posterior(model, x, y):
    """MATH 1(e): m and L Lᵀ = S of both columns; log p(y)."""
    with torch.no_grad():
        e, r, _, _ = model.network.scores(x)
        lam = model.network.scale[0]
        features = ((e + r)[:, 0] / lam).flatten(0, 1)
        covariance = (torch.diag(lam**-2) + features.T @ features / NOISE**2).inverse()
        targets = y.flatten(0, 1)
        mean = (covariance @ features.T @ targets / NOISE**2).T
        marginal = features @ torch.diag(lam**2) @ features.T + NOISE**2 * torch.eye(len(targets), dtype=F64)
        evidence = dist.MultivariateNormal(torch.zeros(len(targets), dtype=F64), marginal).log_prob(targets.T).sum()
    return mean, torch.linalg.cholesky(covariance), evidence


def exact(model, x, y, *, spread=1.0):
    """A full guide set to the closed form, ``spread`` times as wide."""
    guide = guides.for_model(model)
    mean, tril, _ = posterior(model, x, y)
    with torch.no_grad():
        lam = model.network.scale[0]
        guide.network.u.loc.copy_(mean / lam)
        raw = transform_to(constraints.softplus_lower_cholesky).inv(spread * tril / lam.unsqueeze(-1))
        guide.network.u.raw_tril.copy_(raw.expand(1, 2, 2, 2))
    return guide


@pytest.mark.parametrize("spread", [0.4, 1.2])
def test_log_weights_are_those_of_the_two_densities(spread):
    """log p(u | y) + log p(y) − log q(u) at every draw."""
    model, x, y = conjugate()
    guide, us = exact(model, x, y, spread=spread), []
    guide.register_forward_hook(lambda module, args, values: us.append(values["network.u"].detach()))
    result = psis_khat(model, guide, (x, y), num_samples=85)
    mean, tril, evidence = posterior(model, x, y)
    p, q = (dist.MultivariateNormal(mean, scale_tril=scale * tril) for scale in (1, spread))
    u = torch.stack(us)
    expected = (p.log_prob(u) - q.log_prob(u)).sum((-2, -1)) + evidence
    assert torch.allclose(result.log_weights, expected, rtol=1e-9)
    assert expected.std() > 0.1
    assert str(result).startswith(f"k̂ = {result.khat:.2f} (reliable below 0.7), effective sample size {result.ess:.0f}")


def test_too_narrow_a_guide_is_found_and_a_slightly_wide_one_is_good():
    """Ratios of N(0, 1) over N(0, s²) have tails of shape 1 − s² for s < 1, and are bounded for s > 1."""
    model, x, y = conjugate()
    narrow = psis_khat(model, exact(model, x, y, spread=0.3), (x, y))
    wide = psis_khat(model, exact(model, x, y, spread=1.2), (x, y))
    assert narrow.khat > 0.7
    assert narrow.ess < 100
    assert wide.khat < 0.3
    assert wide.ess > 700
    smoothed, khat = array_stats.psislw(-narrow.log_weights.numpy())
    assert narrow.khat == pytest.approx(float(khat))
    assert torch.allclose(narrow.smoothed, torch.as_tensor(smoothed))
    assert narrow.smoothed.logsumexp(0).item() == pytest.approx(0, abs=1e-9)


def first_rows(layer, *, num_data=2):
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(2))
        layer.out.bias.zero_()
    model = Supervised(layer, lambda f: dist.Normal(f, NOISE).to_event(2), num_data=num_data).double()
    return model, torch.randn(num_data, 3, 2, dtype=F64), torch.randn(num_data, 3, 2, dtype=F64)


@pytest.mark.parametrize("collapsed", [True, False])
def test_cgp_whose_output_is_drawn_from_its_prior_is_weighted_by_the_likelihood(collapsed):
    """Σ over examples of E w is the product of marginal likelihoods N(y; ν, V + noise²), with R as a constant."""
    model, x, y = first_rows(CGPAttention(2, 1, noise=0.7, alpha=0.0, collapsed=collapsed))
    result = psis_khat(model, guides.for_model(model), (x, y), num_samples=12_000)
    layer = model.network
    with torch.no_grad():
        parts = (*layer.split_heads(layer.query_key_value(x), 3), *layer.split_heads(layer.latent(x), 1))
        law = layer.law(layer._given(*parts, None))
        tril = law.predictive.tril[:, 0]
        covariance = tril @ tril.mT + NOISE**2 * torch.eye(3, dtype=F64)
        marginal = dist.MultivariateNormal(law.mean[:, 0].mT, covariance.unsqueeze(1)).log_prob(y.mT).sum()
    estimate = result.log_weights.logsumexp(0) - math.log(12_000)
    assert estimate.item() == pytest.approx(marginal.item(), abs=0.15)
    assert result.khat > -math.inf


@pytest.mark.parametrize("drawn", ["joint", "marginal"])
def test_sgpa_counts_the_density_of_what_it_draws(drawn):
    """E w is the evidence of the program: y = A u + g + noise, jointly Gaussian; marginal draws have diagonal C."""
    model, x, y = first_rows(SGPAttention(2, 1, inducing=1, draws=drawn), num_data=1)
    layer = model.network
    with torch.no_grad():
        layer.query_value.weight[2:].mul_(0.3)
        query, value = layer.split_heads(layer.query_value(x), 2)
        a, _ = layer.form._mean(layer, layer._tokens(query, value, None))
        a = a[0, 0]
        c = layer.attention_matrix(x)[0, 0] - a @ a.T
        c = c if drawn == "joint" else torch.diag(c.diag())
        covariance = a @ a.T + c + NOISE**2 * torch.eye(3, dtype=F64)
        evidence = dist.MultivariateNormal(torch.zeros(3, dtype=F64), covariance).log_prob(y[0].T).sum()
        guide = guides.for_model(model)
        guide.network.u.loc.zero_()
        raw = transform_to(constraints.softplus_lower_cholesky).inv(torch.ones(1, 1, dtype=F64))
        guide.network.u.raw_tril.copy_(raw.expand(1, 2, 1, 1))
    result = psis_khat(model, guide, (x, y), num_samples=3000)
    estimate = result.log_weights.logsumexp(0) - math.log(3000)
    assert estimate.item() == pytest.approx(evidence.item(), abs=0.15)


def test_an_autoguide_over_one_vector_has_a_density():
    model, x, y = conjugate()
    result = psis_khat(model, AutoMultivariateNormal(model, init_scale=0.8), (x, y), num_samples=400)
    assert len(result.log_weights.unique()) == 400
    estimate = result.log_weights.logsumexp(0) - math.log(400)
    assert estimate.item() == pytest.approx(posterior(model, x, y)[2].item(), abs=1.0)


def test_a_point_mass_is_refused():
    model, x, y = conjugate()
    model.network.log_scale.requires_grad_(False)
    with pytest.raises(ValueError, match="point mass"):
        psis_khat(model, guides.for_model(model, "delta"), (x, y), num_samples=100)
