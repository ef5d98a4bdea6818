"""A guide fitted to a frozen model, against the closed-form posterior of a conjugate one."""

import math

import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import NonFiniteError
from probattn.inference.posterior.fit_guide import fit_guide
from probattn.models import Supervised

F64, NOISE = torch.float64, 0.8


def conjugate(*, eta=0.0):
    """y = F + noise, F = (E + R) Λ⁻¹ u: Gaussian in u, with outputs of the layer that do not mix those of u."""
    layer = KEPSVGPAttention(2, 1, rank=2, eta=eta)
    model = Supervised(layer, lambda f: dist.Normal(f, NOISE).to_event(2), num_data=3).double()
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(2))
        layer.out.bias.zero_()
        layer.log_scale.copy_(torch.tensor([[0.3, -0.4]]))
        x = torch.randn(3, 4, 2, dtype=F64) + 0.5
        return model, x, model(x)


def posterior(model, x, y):
    """MATH 1(e): S = (Λ⁻² + σ⁻² Φᵀ Φ)⁻¹, m = σ⁻² S Φᵀ y, Φ = (E + R) Λ⁻¹; and log p(y)."""
    with torch.no_grad():
        e, r, _, _ = model.network.scores(x)
        lam = model.network.scale[0]
        features = ((e + r)[:, 0] / lam).flatten(0, 1)
        covariance = (torch.diag(lam**-2) + features.T @ features / NOISE**2).inverse()
        targets = y.flatten(0, 1)
        mean = (covariance @ features.T @ targets / NOISE**2).T
        marginal = features @ torch.diag(lam**2) @ features.T + NOISE**2 * torch.eye(len(targets), dtype=F64)
        evidence = dist.MultivariateNormal(torch.zeros(len(targets), dtype=F64), marginal).log_prob(targets.T).sum()
    return mean, covariance, evidence


def test_a_full_guide_converges_to_the_closed_form_and_its_elbo_to_the_evidence():
    model, x, y = conjugate()
    guide = guides.for_model(model)
    losses = fit_guide(model, guide, (x, y), steps=250, lr=0.1, num_samples=32)
    mean, covariance, evidence = posterior(model, x, y)
    q, lam = guide.network.u, model.network.scale[0].detach()
    std = covariance.diag().sqrt()
    assert losses.shape == (250,)
    assert losses[0] - losses[-50:].mean() > 1
    assert (((lam * q.loc[0] - mean) / std).abs() < 0.1).all()
    fitted = lam.outer(lam) * (q.scale_tril @ q.scale_tril.mT)[0]
    assert (((fitted - covariance) / std.outer(std)).abs() < 0.1).all()
    assert losses[-50:].mean().item() == pytest.approx(-evidence.item(), abs=0.05)


def test_the_model_is_untouched_bit_for_bit():
    network = nn.Sequential(KEPSVGPAttention(4, 2, rank=2), nn.Dropout(0.5), nn.Dropout(0.5))
    model = Supervised(network, lambda f: dist.Normal(f, NOISE).to_event(2), num_data=5).double()
    network[0].query_key.weight.requires_grad_(False)
    network[1].eval()
    guide = guides.for_model(model)
    batch = (torch.randn(5, 3, 4, dtype=F64), torch.randn(5, 3, 4, dtype=F64))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    before = guide.network.get_submodule("0").u.loc.clone()
    fit_guide(model, guide, batch, steps=2)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in (*model.parameters(), *guide.parameters()))
    assert not torch.equal(guide.network.get_submodule("0").u.loc, before)


def test_an_autoguide_is_built_and_fitted():
    """A multivariate normal over all of u holds the posterior of every column."""
    model, x, y = conjugate()
    guide = AutoMultivariateNormal(model, init_scale=0.5)
    losses = fit_guide(model, guide, (x, y), steps=200, lr=0.1, num_samples=16)
    evidence = posterior(model, x, y)[2]
    assert losses[-50:].mean().item() == pytest.approx(-evidence.item(), abs=0.2)


def test_errors_name_their_source():
    model, x, y = conjugate()
    guide = guides.for_model(model)
    broken = y.clone()
    broken[1, 0, 0] = math.inf
    with pytest.raises(NonFiniteError, match=r"from the labels, rows \[1\]"):
        fit_guide(model, guide, (x, broken), steps=1)
    with pytest.raises(ValueError, match="built for another model"):
        fit_guide(conjugate()[0], guide, (x, y), steps=1)
    assert all(parameter.requires_grad for parameter in model.parameters())
