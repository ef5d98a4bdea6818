"""Convergence and collapse of a guide: closed forms of conjugate models, and of divergences."""

import math
from dataclasses import replace

import pytest
import torch
from conjugate import conjugate, design, gaussian_guide, posterior
from float64 import eye64, randn64, tensor64, zeros64
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.distributions import transform_to

from probattn import CGPAttention, KEPSVGPAttention, guides
from probattn.inference import posterior_summary
from probattn.inference.diagnostics import convergence as module
from probattn.inference.diagnostics.convergence import SiteConvergence, convergence
from probattn.models import Classifier

DATA = 12


def diagnose(model, guide, x, y, **options):
    torch.manual_seed(1)
    (site,) = convergence(model, guide, [(x, y)], **{"refit_epochs": 5} | options)
    return site


@pytest.mark.parametrize(
    ("shift", "spread", "epochs", "state"),
    [
        ((0.0, 0.0), 1.0, 5, "alive"),
        ((1.5, -1.0), 1.0, 30, "not converged"),
        ((0.0, 0.0), 0.1, 30, "not converged"),
    ],
)
def test_a_guide_gains_its_divergence_from_the_posterior(shift, spread, epochs, state):
    """KL(N(m + δ, r² S) ‖ N(m, S)) = ½ δᵀ S⁻¹ δ + r² − 1 − 2 log r for each of two columns."""
    model, x, y = conjugate(noise=0.5, num_data=DATA)
    mean, covariance = posterior(model, x, y, noise=0.5)
    shift = tensor64(shift) * covariance.diag().sqrt()
    guide = gaussian_guide(model, mean + shift, spread**2 * covariance).requires_grad_(False)
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    site = diagnose(model, guide, x, y, refit_epochs=epochs)
    lost = (shift @ covariance.inverse() @ shift).item() + 2 * (
        spread**2 - 1 - 2 * math.log(spread)
    )
    # The refit ends short of the posterior by less than a twentieth.
    assert abs(site.gain - lost) <= 5 * site.gain_error + 0.05 * lost
    assert site.state == state
    assert not any(parameter.requires_grad for parameter in guide.parameters())
    assert all(torch.equal(value, before[name]) for name, value in guide.state_dict().items())


@pytest.mark.parametrize("cuts", [[DATA], [1, DATA - 1], [2, 5, DATA - 7]])
def test_a_gain_counts_each_example_once_in_batches_of_any_size(cuts, monkeypatch):
    """Of a guide without variance, so that the loss is exact: squared residuals and the KL of the
    mean."""
    model, x, y = conjugate(noise=0.5, num_data=DATA)
    mean, _ = posterior(model, x, y, noise=0.5)
    (phi, prior), tiny = design(model, x), 1e-12 * eye64(2)
    moved = gaussian_guide(model, mean + 0.7, tiny).state_dict()
    monkeypatch.setattr(
        module, "refit_guide", lambda model, guide, *_, **__: guide.load_state_dict(moved)
    )
    batches = list(zip(x.split(cuts), y.split(cuts), strict=True))
    (site,) = convergence(model, gaussian_guide(model, mean, tiny), batches)
    losses = [
        ((y.flatten(0, 1) - phi @ centre.T) / 0.5).square().sum() / 2
        + (centre @ prior.inverse() @ centre.T).trace() / 2
        for centre in (mean, mean + 0.7)
    ]
    assert site.gain == pytest.approx((losses[0] - losses[1]).item(), rel=1e-4)


@pytest.mark.parametrize(("noise", "state"), [(0.5, "not converged"), (1e4, "collapsed")])
def test_the_prior_as_guide_has_collapsed_only_where_data_say_nothing(noise, state):
    model, x, y = conjugate(noise=noise, num_data=DATA)
    site = diagnose(model, gaussian_guide(model, zeros64(2, 2), design(model, x)[1]), x, y)
    assert site.std_ratio == pytest.approx((1, 1, 1))
    assert site.kl == pytest.approx(0, abs=1e-9)
    assert site.state == state


def test_a_tempered_optimum_has_converged_under_its_own_kl_weight_only():
    model, x, y = conjugate(noise=2.0, num_data=DATA)
    guide = gaussian_guide(model, *posterior(model, x, y, noise=2.0 * 0.1**0.5))
    assert diagnose(model, guide, x, y, kl_weights=(0.1, 1.0)).state == "alive"
    assert diagnose(model, guide, x, y).state == "not converged"


def test_autoguides_say_what_is_not_known_and_are_refitted():
    model, x, y = conjugate(noise=0.5, num_data=DATA)
    guide = AutoNormal(model)
    assert diagnose(model, guide, x, y, refit_epochs=0).state == "unknown"
    site = diagnose(model, guide, x, y, refit_epochs=4)
    assert site.state == "not converged"
    assert 0 < site.std_ratio[0] < 0.3  # AutoNormal starts at a tenth of the prior's


def classifier(family="full", **options):
    layer = KEPSVGPAttention.partial(rank=2, **options)
    model = Classifier(
        nn.Sequential(layer(4, 2), layer(4, 1), nn.Flatten(-2), nn.Linear(12, 3)), num_data=8
    ).double()
    with torch.no_grad():
        for i in (0, 1):
            model.network[i].log_scale.add_(torch.randn_like(model.network[i].log_scale) / 2)
    return model, guides.for_model(model, family)


def test_each_site_is_refitted_by_itself():
    """The guide of the second site is at its optimum as far as data tell: its output weights are
    0."""
    model, guide = classifier()
    with torch.no_grad():
        for part in (model.network[1].out, model.network[3]):
            part.weight.zero_()
        second = guide.get_submodule("network.1.u")
        second.loc.zero_()
        tril = torch.eye(2).expand_as(second.raw_tril)
        second.raw_tril.copy_(transform_to(constraints.softplus_lower_cholesky).inv(tril))
    data = [(randn64(8, 3, 4), torch.arange(8) % 3)]
    states = {site.site: site.state for site in convergence(model, guide, data, refit_epochs=3)}
    assert states == {"network.0.u": "not converged", "network.1.u": "collapsed"}
    local = Classifier(nn.Sequential(CGPAttention(4, 2), *model.network[2:]), num_data=8).double()
    assert convergence(local, guides.for_model(local), data) == []


@pytest.mark.parametrize(
    ("gain", "state"),
    [(None, "unknown"), (0.0, "alive"), (3.0, "not converged"), (math.nan, "not converged")],
)
def test_the_verdict_follows_from_the_gain_and_the_divergence(gain, state):
    moments = {"kl": 20.0, "std_ratio": (0.5, 0.4, 0.6)}
    site = SiteConvergence(site="u", size=10, num_data=100, **moments, gain=gain, gain_error=0.1)
    assert site.state == state
    collapsed = replace(site, kl=0.1, std_ratio=(1.0, 0.9, 1.1))
    assert collapsed.state == (state if state == "not converged" else "collapsed")


COVARIANCES = {
    "full": lambda q: q.scale_tril @ q.scale_tril.mT,
    "diagonal": lambda q: nn.functional.softplus(q.raw_scale).square().diag_embed(),
    "lowrank": lambda q: (
        nn.functional.softplus(q.raw_scale).square().diag_embed() + q.factor @ q.factor.mT
    ),
}


@pytest.mark.parametrize("family", COVARIANCES)
def test_the_summary_has_the_divergence_of_dense_gaussians(family):
    model, guide = classifier(family)
    for i, site in enumerate(posterior_summary(model, guide)):
        q, scale = guide.get_submodule(site.site), model.network[i].log_scale.exp()
        tril = torch.linalg.cholesky(
            scale[:, None, :, None] * COVARIANCES[family](q) * scale[:, None, None]
        )
        gaussian = torch.distributions.MultivariateNormal(scale[:, None] * q.loc, scale_tril=tril)
        prior = torch.distributions.MultivariateNormal(
            torch.zeros_like(q.loc), scale[:, None].square().diag_embed()
        )
        ratio = gaussian.stddev / prior.stddev
        assert site.kl == pytest.approx(
            torch.distributions.kl_divergence(gaussian, prior).sum().item()
        )
        assert site.std_ratio == pytest.approx(
            [ratio.mean().item(), ratio.min().item(), ratio.max().item()]
        )
        assert (site.site, site.size) == (f"network.{i}.u", q.loc.numel())


def test_the_summary_estimates_a_divergence_without_closed_form(monkeypatch):
    """KL(N(m, s²) ‖ Laplace(0, b)) has E|u| of a folded normal."""
    model, guide = classifier("diagonal", prior="laplace")
    monkeypatch.setattr(module, "DRAWS", 20_000)
    for i, site in enumerate(posterior_summary(model, guide)):
        b = model.network[i].log_scale.exp().unsqueeze(-2).expand(-1, 2, -1)
        q = guide.get_submodule(site.site)
        m, s = (b * math.sqrt(2) * value for value in (q.loc, nn.functional.softplus(q.raw_scale)))
        folded = s * math.sqrt(2 / math.pi) * (-(m**2) / (2 * s**2)).exp() + m * torch.erf(
            m / (s * math.sqrt(2))
        )
        kl = (2 * b).log() + folded / b - 0.5 * (2 * math.pi * math.e * s**2).log()
        assert site.kl == pytest.approx(kl.sum().item(), rel=0.02)
