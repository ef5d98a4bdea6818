"""The guide refitted to a fixed network on minibatches, against the closed-form posterior of a conjugate model."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from conjugate import F64, NOISE, conjugate, evidence, gaussian_guide, posterior
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroParam
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from probattn import CGPAttention, guides, local_site
from probattn.inference import NonFiniteError, posterior_summary, refit_guide
from probattn.models import Classifier
from tests.support.correlated_blocks import CorrelatedBlocks

DATA = 12


def problem():
    """A conjugate model with dropout, which would disturb a refit, and a guide that starts far from the posterior."""
    model, x, y = conjugate(num_data=DATA)
    model.network.out = nn.Dropout(0.5)
    guide = guides.for_model(model).double()
    with torch.no_grad():
        guide.network.u.loc += 1
    return model, guide, x, y


def kl_to_prior(mean, covariance):
    prior = MultivariateNormal(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64))
    return sum(kl_divergence(MultivariateNormal(m, covariance), prior) for m in mean).item()


def split(*tensors):
    return list(zip(*(each.split(5) for each in tensors), strict=True))


@pytest.mark.parametrize("kl_weight", [1.0, 0.2])
def test_minibatches_of_unequal_size_lead_to_the_closed_form(kl_weight):
    model, guide, x, y = problem()
    mean, covariance = posterior(model, x, y, noise=kl_weight**0.5 * NOISE)
    scale = model.network.scale[0].detach()
    mean, covariance = mean / scale, covariance / scale.outer(scale)  # of v = Λ⁻¹ u
    (before,) = posterior_summary(model, guide)
    result = refit_guide(model, guide, split(x, y), kl_weight=kl_weight, num_samples=128)
    (after,) = posterior_summary(model, guide)
    q = guide.network.u
    std = covariance.diag().sqrt()
    assert result.converged
    assert 4 <= result.epochs < 100
    assert (((q.loc[0] - mean) / std).abs() < 0.5).all()
    fitted = (q.scale_tril @ q.scale_tril.mT)[0]
    assert (((fitted - covariance) / std.outer(std)).abs() < 0.25).all()
    assert after.kl == pytest.approx(kl_to_prior(mean, covariance), rel=0.05)
    assert before.std_ratio[0] == pytest.approx(0.1)
    assert after.std_ratio[0] == pytest.approx(std.mean().item(), rel=0.1)
    assert result.elbo_after > result.elbo_before + 0.1
    if kl_weight == 1:
        assert result.elbo_after == pytest.approx(evidence(model, x, y).item() / DATA, abs=0.05)


@pytest.mark.parametrize(("size", "epochs"), [(60, 20), (20, 200)])
def test_converged_means_near_the_optimum_of_correlated_gaussians(size, epochs):
    """The remaining difference is the samples' noise in the covariances."""
    blocks = CorrelatedBlocks()
    result = refit_guide(blocks.model, blocks.guide, blocks.batches(size), epochs=epochs)
    assert result.epochs <= epochs
    assert not result.converged or blocks.gap() < 0.08


def test_a_natural_step_of_length_1_near_the_optimum_reaches_the_covariance_under_a_tempered_kl():
    kl_weight = 0.2
    model, x, y = conjugate(num_data=DATA)
    mean, covariance = posterior(model, x, y, noise=kl_weight**0.5 * NOISE)
    guide = gaussian_guide(model, mean, 4 * covariance)
    refit_guide(model, guide, [(x, y)], epochs=1, lr=1.0, kl_weight=kl_weight, num_samples=512)
    scale, q = model.network.scale[0].detach(), guide.network.u
    fitted, std = (q.scale_tril @ q.scale_tril.mT)[0] * scale.outer(scale), covariance.diag().sqrt()
    assert (((fitted - covariance) / std.outer(std)).abs() < 0.3).all()


class LocalAndGlobal(nn.Module):
    """y ~ N(u, 1) and local z ~ N(u, 1), whose guide stays N(0, 1)."""

    num_data = DATA

    def forward(self, x, y=None):
        u = pyro.sample("u", dist.Normal(torch.zeros((), dtype=F64), 1.0))
        with pyro.plate("data", len(x), dim=-1):
            pyro.sample("z", dist.Normal(u, 1.0), infer=local_site())
            pyro.sample("y", dist.Normal(u, 1.0), obs=y)


class NormalGuide(PyroModule):
    def __init__(self):
        super().__init__()
        self.loc = PyroParam(torch.tensor(2.0, dtype=F64))
        self.sd = PyroParam(torch.tensor(0.1, dtype=F64), dist.constraints.positive)

    def forward(self, x, y=None):
        pyro.sample("u", dist.Normal(self.loc, self.sd))
        with pyro.plate("data", len(x), dim=-1):
            pyro.sample("z", dist.Normal(torch.zeros(len(x), dtype=F64), 1.0), infer=local_site())


def test_kls_of_local_sites_have_a_weight_of_their_own():
    """The objective is w KL(q ‖ N(0, 1)) + v N E[u²] / 2 − Σ E log N(y; u, 1), by hand."""
    y, guide = torch.randn(DATA, dtype=F64) + 1, NormalGuide()
    kl_weight, local_kl_weight = 0.5, 0.1
    weights = {"kl_weight": kl_weight, "local_kl_weight": local_kl_weight}
    refit_guide(LocalAndGlobal(), guide, [(torch.zeros(DATA), y)], lr=0.5, num_samples=16, tolerance=1e-5, **weights)
    precision = kl_weight + local_kl_weight * DATA + DATA
    assert guide.loc.item() == pytest.approx(y.sum().item() / precision, abs=0.05)
    assert guide.sd.item() == pytest.approx((kl_weight / precision) ** 0.5, rel=0.1)


def test_the_model_is_untouched_and_a_second_refit_starts_where_the_first_ended():
    model, guide, x, y = problem()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first = refit_guide(model, guide, split(x, y), num_samples=8)
    second = refit_guide(model, guide, split(x, y), num_samples=8)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in (*model.parameters(), *guide.parameters()))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert second.elbo_before == pytest.approx(first.elbo_after, rel=1e-9)
    assert second.elbo_after >= second.elbo_before
    assert second.elbo_after - first.elbo_after < 0.03


def test_guides_without_natural_gradients_gain():
    model, _, x, y = problem()
    for guide in (guides.for_model(model, "lowrank"), AutoNormal(model)):
        result = refit_guide(model, guide, split(x, y), epochs=15, lr=0.5)
        assert result.elbo_after > result.elbo_before


def test_a_guide_without_parameters_has_converged_before_the_first_epoch():
    network = nn.Sequential(CGPAttention(4, 2), nn.Flatten(-2), nn.Linear(12, 3))
    model = Classifier(network, num_data=2).double()
    batch = (torch.randn(2, 3, 4, dtype=F64), torch.tensor([0, 2]))
    result = refit_guide(model, guides.for_model(model), [batch])
    assert (result.converged, result.epochs) == (True, 0)
    assert result.elbo_after == result.elbo_before


def test_what_would_silently_be_wrong_is_refused():
    model, guide, x, y = problem()
    broken = y.clone()
    broken[7, 0, 0] = math.inf
    with pytest.raises(NonFiniteError, match="not finite"):
        refit_guide(model, guide, split(x, broken))
    with pytest.raises(ValueError, match="another model"):
        refit_guide(problem()[0], guide, split(x, y))
