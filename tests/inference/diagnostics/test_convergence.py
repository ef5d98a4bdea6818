"""Convergence of a guide: each diagnostic on guides for which it must hold and must not, with closed forms."""

import math
from dataclasses import replace

import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.distributions import transform_to

from probattn import CGPAttention, KEPSVGPAttention, guides
from probattn.inference.diagnostics import convergence as module
from probattn.inference.diagnostics.convergence import SiteConvergence, convergence
from probattn.models import Classifier, Supervised

F64, DATA = torch.float64, 12


def build(noise=0.5):
    """y = F + noise, F = (E + R) v of a whitened u = Λ v: Gaussian in v; N(m, S) of each output in closed form."""
    torch.manual_seed(0)
    layer = KEPSVGPAttention(2, 1, rank=2, eta=0.0)
    layer.out = nn.Identity()
    model = Supervised(layer, lambda f: dist.Normal(f, noise).to_event(2), num_data=DATA).double()
    with torch.no_grad():
        layer.log_scale.copy_(torch.tensor([[0.3, -0.4]]))
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
    (site,) = convergence(model, guide, [(x, y)], **{"refit_epochs": 5} | options)
    return site


def test_the_exact_posterior_has_converged_and_not_collapsed():
    model, guide, x, y, mean, covariance = build()
    set_guide(guide, mean, covariance)
    site = diagnose(model, guide, x, y)
    assert abs(site.gain) < 0.2
    assert site.state == "alive"


def test_a_shifted_mean_loses_half_its_squared_mahalanobis_distance():
    """KL(N(m + δ, S) ‖ N(m, S)) = ½ δᵀ S⁻¹ δ, summed over outputs."""
    model, guide, x, y, mean, covariance = build()
    shift = torch.tensor([1.5, -1.0], dtype=F64) * covariance.diag().sqrt()
    set_guide(guide, mean + shift, covariance)
    site = diagnose(model, guide, x, y, refit_epochs=15)
    lost = (shift @ covariance.inverse() @ shift).item()  # ½ for each of two outputs
    assert site.gain == pytest.approx(lost, rel=0.1)
    assert site.state == "not converged"


@pytest.mark.parametrize("cuts", [[DATA], [1, DATA - 1], [2, 5, DATA - 7]])
def test_a_gain_counts_each_example_once_in_batches_of_any_size(cuts, monkeypatch):
    """Of a guide without variance, so that the loss is exact: squared residuals and the KL of the mean."""
    model, guide, x, y, mean, _ = build()
    tiny = 1e-12 * torch.eye(2, dtype=F64)
    set_guide(guide, mean, tiny)
    monkeypatch.setattr(module, "refit_guide", lambda model, guide, *_, **__: set_guide(guide, mean + 0.7, tiny))
    found = convergence(model, guide, list(zip(x.split(cuts), y.split(cuts), strict=True)))
    e, r, _, _ = model.network.scores(x)
    residuals = [y - (e + r)[:, 0] @ centre.T for centre in (mean, mean + 0.7)]
    before, after = ((each / 0.5).square().sum() / 2 for each in residuals)
    kl = ((mean + 0.7).square().sum() - mean.square().sum()) / 2
    assert found[0].gain == pytest.approx((before - after - kl).item(), rel=1e-4)


def test_a_small_standard_deviation_loses_its_kl_from_the_posterior():
    model, guide, x, y, mean, covariance = build()
    set_guide(guide, mean, covariance / 100)
    site = diagnose(model, guide, x, y, refit_epochs=30)
    lost = 4 * 0.5 * (0.01 - 1 - math.log(0.01))
    assert site.gain == pytest.approx(lost, rel=0.1)
    assert site.state == "not converged"


def test_the_prior_as_guide_has_collapsed_and_not_converged():
    model, guide, x, y, mean, covariance = build()
    set_guide(guide, torch.zeros_like(mean), torch.eye(2, dtype=F64))
    site = diagnose(model, guide, x, y)
    assert site.std_ratio == pytest.approx((1, 1, 1))
    assert site.kl == pytest.approx(0, abs=1e-9)
    assert site.state == "not converged"


def test_the_prior_where_data_say_nothing_has_collapsed_and_converged():
    model, guide, x, y, _, _ = build(noise=1e4)
    set_guide(guide, torch.zeros(2, 2, dtype=F64), torch.eye(2, dtype=F64))
    site = diagnose(model, guide, x, y)
    assert site.state == "collapsed"


def test_a_frozen_random_matrix_has_not_converged():
    model, guide, x, y, _, _ = build()
    guide.requires_grad_(False)
    initial = {name: value.clone() for name, value in guide.state_dict().items()}
    site = diagnose(model, guide, x, y)
    assert site.state == "not converged"
    assert not any(parameter.requires_grad for parameter in guide.parameters())
    assert all(torch.equal(value, initial[name]) for name, value in guide.state_dict().items())


def test_a_tempered_optimum_has_converged_under_its_own_kl_weight_only():
    model, guide, x, y, _, _ = build(noise=2.0)
    with torch.no_grad():
        e, r, _, _ = model.network.scores(x)
        features = (e + r)[:, 0].flatten(0, 1)
    tempered = (torch.eye(2, dtype=F64) + features.T @ features / (0.1 * 2.0**2)).inverse()
    mean = (tempered @ features.T @ y.flatten(0, 1) / (0.1 * 2.0**2)).T
    set_guide(guide, mean, tempered)
    assert diagnose(model, guide, x, y, kl_weights=(0.1, 1.0)).state == "alive"
    assert diagnose(model, guide, x, y).state == "not converged"


def test_autoguides_say_what_is_not_known_and_are_refitted():
    model, _, x, y, _, _ = build()
    guide = AutoNormal(model)
    site = diagnose(model, guide, x, y, refit_epochs=0)
    assert site.state == "unknown"
    site = diagnose(model, guide, x, y, refit_epochs=4)
    assert site.state == "not converged"
    assert 0 < site.std_ratio[0] < 0.3  # AutoNormal starts at a tenth of the prior's


def classifier(heads=1):
    layer = KEPSVGPAttention.partial(rank=2)
    network = nn.Sequential(layer(4, heads), layer(4, heads), Pool(), nn.Linear(4, 3))
    torch.manual_seed(0)
    model = Classifier(network, num_data=8).double()
    return model, guides.for_model(model).double(), torch.randn(8, 3, 4, dtype=F64), torch.arange(8) % 3


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(-2)


def test_each_site_is_refitted_alone():
    """The guide of the second site is at its optimum as far as data tell: its output weights are 0."""
    model, guide, x, y = classifier()
    with torch.no_grad():
        for each in (model.network[1].out, model.network[3]):
            each.weight.zero_()
        second = guide.get_submodule("network.1.u")
        second.loc.zero_()
        second.raw_tril.copy_(transform_to(constraints.softplus_lower_cholesky).inv(torch.eye(2).expand(1, 2, 2, 2)))
    found = convergence(model, guide, [(x, y)], refit_epochs=3)
    assert [site.site for site in found] == ["network.0.u", "network.1.u"]
    assert [site.state for site in found] == ["not converged", "collapsed"]
    assert str(found[1]).startswith("network.1.u: collapsed, gain of refitting ")


def test_a_model_without_global_latent_variables_has_no_sites():
    network = nn.Sequential(CGPAttention(4, 2), Pool(), nn.Linear(4, 3))
    model = Classifier(network, num_data=4).double()
    data = [(torch.randn(4, 3, 4, dtype=F64), torch.tensor([0, 1, 2, 0]))]
    assert convergence(model, guides.for_model(model), data) == []


@pytest.mark.parametrize(("gain", "expected"), [(None, None), (0.0, True), (3.0, False), (math.nan, False)])
def test_the_verdict_follows_from_the_gain(gain, expected):
    moments = {"kl": 20.0, "std_ratio": (0.5, 0.4, 0.6)}
    site = SiteConvergence(site="u", size=10, num_data=100, **moments, gain=gain, gain_error=0.1)
    assert site.state == {True: "alive", False: "not converged", None: "unknown"}[expected]
    assert replace(site, kl=0.1, std_ratio=(1.0, 0.9, 1.1)).state == (
        "not converged" if expected is False else "collapsed"
    )
