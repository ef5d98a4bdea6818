"""Convergence of a guide: each diagnostic on guides for which it must hold and must not, with closed forms."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from torch import nn
from torch.distributions import transform_to

from probattn import CGPAttention, KEPSVGPAttention, guides
from probattn.families import Full
from probattn.handlers import draws
from probattn.inference.diagnostics.convergence import SiteConvergence, convergence, predictive_spread
from probattn.inference.diagnostics.guide_gradients import GradientPair, balance
from probattn.inference.elbo import TraceMeanField_ELBO
from probattn.models import Classifier, Supervised

F64, DATA = torch.float64, 12


def build(noise=0.5):
    """y = F + noise, F = (E + R) v of a whitened u = Λ v: Gaussian in v; N(m, S) of each output in closed form."""
    torch.manual_seed(0)
    layer = KEPSVGPAttention(2, 1, rank=2, eta=0.0)
    layer.out = nn.Identity()
    model = Supervised(layer, lambda f: dist.Normal(f, noise).to_event(2), num_data=DATA).double()
    with torch.no_grad():
        layer.scale_unconstrained.copy_(torch.tensor([[0.3, -0.4]]))
        x = torch.randn(DATA, 4, 2, dtype=F64) + 0.5
        y = model(x)
        e, r, _, _ = layer.scores(x)
        features, targets = (e + r)[:, 0].flatten(0, 1), y.flatten(0, 1)
        covariance = (torch.eye(2, dtype=F64) + features.T @ features / noise**2).inverse()
        mean = (covariance @ features.T @ targets / noise**2).T
    return model, guides.for_model(model).double(), x, y, mean, covariance


def set_guide(guide, mean, covariance):
    with torch.no_grad():
        q = guide.network.u
        q.loc.copy_(mean)
        tril = torch.linalg.cholesky(covariance).expand_as(q.raw_tril)
        q.raw_tril.copy_(transform_to(constraints.softplus_lower_cholesky).inv(tril))


def diagnose(model, guide, x, y, **options):
    torch.manual_seed(1)
    found = convergence(model, guide, [(x, y)], **{"passes": 8, "refit_epochs": 15} | options)
    (site,) = found.sites
    return found, site


def test_the_exact_posterior_has_converged_and_not_collapsed():
    model, guide, x, y, mean, covariance = build()
    set_guide(guide, mean, covariance)
    _, site = diagnose(model, guide, x, y)
    assert site.is_converged
    assert not site.is_collapsed
    for parameter in site.parameters:
        assert parameter.gradients.residual < 0.3
        assert 0.7 < parameter.gradients.ratio < 1.4
        assert parameter.gradients.cosine < -0.9
    assert abs(site.refit.gain) < 0.05
    assert site.verdict == "converged: refitting gains practically nothing"


def test_a_shifted_mean_loses_half_its_squared_mahalanobis_distance():
    """KL(N(m + δ, S) ‖ N(m, S)) = ½ δᵀ S⁻¹ δ, summed over outputs."""
    model, guide, x, y, mean, covariance = build()
    shift = torch.tensor([1.5, -1.0], dtype=F64) * covariance.diag().sqrt()
    set_guide(guide, mean + shift, covariance)
    found, site = diagnose(model, guide, x, y)
    lost = (shift @ covariance.inverse() @ shift).item()  # ½ for each of two outputs
    assert found.refit.gain == pytest.approx(lost, rel=0.1)
    assert found.refit.gain == site.refit.gain
    assert site.is_converged is False
    by_name = {parameter.name: parameter for parameter in site.parameters}
    assert by_name["loc"].is_out_of_balance
    assert not by_name["raw_tril"].is_out_of_balance
    assert "gradient on m is" in site.verdict
    assert f"refitting gains {found.refit.gain / DATA:.2g} nats per example" in site.verdict


def test_a_small_standard_deviation_is_out_of_balance_in_s_alone():
    model, guide, x, y, mean, covariance = build()
    set_guide(guide, mean, covariance / 100)
    _, site = diagnose(model, guide, x, y)
    lost = 4 * 0.5 * (0.01 - 1 - math.log(0.01))
    assert site.refit.gain == pytest.approx(lost, rel=0.1)
    assert [each.symbol for each in site.parameters if each.is_out_of_balance] == ["S"]
    assert "the KL's gradient on S is" in site.verdict


def test_the_prior_as_guide_has_collapsed_and_not_converged():
    model, guide, x, y, mean, covariance = build()
    set_guide(guide, torch.zeros_like(mean), torch.eye(2, dtype=F64))
    _, site = diagnose(model, guide, x, y)
    assert site.is_collapsed
    assert site.is_converged is False
    assert site.std_ratio == pytest.approx((1, 1, 1))
    assert site.kl == pytest.approx(0, abs=1e-9)
    assert "not converged: " in site.verdict
    assert "collapsed to the prior: KL 0.0 nats for 4 variables, standard deviation 1.00 of the prior's" in site.verdict


def test_the_prior_where_data_say_nothing_has_collapsed_and_converged():
    model, guide, x, y, _, _ = build(noise=1e4)
    set_guide(guide, torch.zeros(2, 2, dtype=F64), torch.eye(2, dtype=F64))
    _, site = diagnose(model, guide, x, y)
    assert site.is_collapsed
    assert site.is_converged
    assert site.verdict.startswith("converged: refitting gains practically nothing, and collapsed to the prior")


def test_a_frozen_random_matrix_has_not_converged():
    model, guide, x, y, _, _ = build()
    guide.requires_grad_(False)
    initial = {name: value.clone() for name, value in guide.state_dict().items()}
    _, site = diagnose(model, guide, x, y, initial=initial, total_lr=1.0)
    assert site.is_converged is False
    assert site.refit.is_material(site.size)
    assert all(parameter.largest_shift == 0 for parameter in site.parameters)
    assert not any(parameter.requires_grad for parameter in guide.parameters())
    assert all(torch.equal(value, initial[name]) for name, value in guide.state_dict().items())


def train(model, guide, batch, *, lr, steps):
    """Train by Adam and return the initial parameters and the sum of learning rates."""
    initial = {name: value.clone() for name, value in guide.state_dict().items()}
    optimizer, elbo = torch.optim.Adam(guide.parameters(), lr=lr), TraceMeanField_ELBO()
    for _ in range(steps):
        optimizer.zero_grad()
        with draws("example"), draws(4):
            elbo.differentiable_loss(model, guide, *batch).backward()
        optimizer.step()
    return initial, lr * steps


@pytest.mark.parametrize("refit_epochs", [0, 2])
def test_a_tiny_learning_rate_is_a_speed_limit(refit_epochs):
    model, guide, x, y, mean, covariance = build()
    set_guide(guide, mean + 3, covariance / 100)
    initial, total_lr = train(model, guide, (x, y), lr=1e-4, steps=30)
    options = {"initial": initial, "total_lr": total_lr, "refit_epochs": refit_epochs}
    found, site = diagnose(model, guide, x, y, **options)
    loc, tril = site.parameters
    assert loc.largest_shift == pytest.approx(1, abs=0.05)
    assert tril.largest_shift == pytest.approx(1, abs=0.05)
    assert site.is_converged is False
    assert f"m moved {loc.largest_shift:.2f} of what the optimiser allowed" in site.verdict
    assert (found.refit is None) == (refit_epochs == 0)


def test_a_run_that_arrived_moved_less_than_its_optimiser_allowed():
    model, guide, x, y, mean, covariance = build()
    set_guide(guide, mean + 0.5 * covariance.diag().sqrt(), covariance)
    initial, _ = train(model, guide, (x, y), lr=0.02, steps=60)
    set_guide(guide, mean, covariance)
    _, site = diagnose(model, guide, x, y, initial=initial, total_lr=60 * 0.02, refit_epochs=0)
    assert not any(parameter.is_on_speed_limit for parameter in site.parameters)
    assert site.is_converged
    assert site.verdict == "converged"


def test_a_tempered_optimum_has_converged_under_its_own_kl_weight_only():
    model, guide, x, y, _, _ = build(noise=2.0)
    with torch.no_grad():
        e, r, _, _ = model.network.scores(x)
        features = (e + r)[:, 0].flatten(0, 1)
    tempered = (torch.eye(2, dtype=F64) + features.T @ features / (0.1 * 2.0**2)).inverse()
    mean = (tempered @ features.T @ y.flatten(0, 1) / (0.1 * 2.0**2)).T
    set_guide(guide, mean, tempered)
    assert diagnose(model, guide, x, y, kl_weights=(0.1, 1.0))[1].is_converged
    assert diagnose(model, guide, x, y)[1].is_converged is False


def test_autoguides_say_what_is_not_known_and_are_refitted():
    model, _, x, y, _, _ = build()
    guide = AutoNormal(model)
    _, site = diagnose(model, guide, x, y, refit_epochs=0)
    assert site.is_converged is None
    assert site.parameters == ()
    assert site.verdict.startswith("unknown: AutoNormal has no parameters of single sites")
    _, site = diagnose(model, guide, x, y, refit_epochs=4)
    assert site.is_converged is False
    assert "refitting gains" in site.verdict
    assert 0 < site.std_ratio[0] < 0.3  # AutoNormal starts at a tenth of the prior's
