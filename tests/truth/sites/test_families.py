"""Guide families relative to the prior: neither KL nor function values depend on the prior's
scale."""

import math

import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from float64 import F64, ones64, randn64
from torch.distributions import kl_divergence
from torch.testing import assert_close

from probattn import KEPSVGPAttention, draws, families, guides, priors

SHAPE = (2, 4, 3)


def build(prior, family, dtype=F64):
    """A guide module away from its start, built at the scale 1."""
    torch.manual_seed(0)
    module = families.FAMILIES[family](prior(torch.ones(SHAPE, dtype=dtype))).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("log10", [-3, 0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_closed_form_kl_is_that_at_scale_1(family, dtype, log10):
    module = build(priors.normal, family)
    one = priors.normal(ones64(SHAPE))
    expected = kl_divergence(module(one), one).item()
    prior = priors.normal((10.0**log10 * torch.linspace(0.5, 2, 24, dtype=dtype)).reshape(SHAPE))
    kl = kl_divergence(module.to(dtype)(prior), prior)
    assert kl.item() == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("prior", priors.PRIORS)
@pytest.mark.parametrize("family", families.FAMILIES)
def test_without_the_ksvd_term_the_objective_has_no_gradient_in_the_scale(family, prior, elbo):
    """Scales 1e-3 to 1e3, several draws; hierarchical priors draw a random scale of their own."""
    layer = KEPSVGPAttention(6, 2, rank=3, prior=prior, eta=0.0).double()
    guide = guides.for_model(layer, family).double()
    with torch.no_grad():
        layer.log_scale.copy_(torch.linspace(math.log(1e-3), math.log(1e3), 6).reshape(2, 3))
    x = randn64(5, 4, 6)

    with draws(3):
        loss = elbo().differentiable_loss(layer, guide, x)
        trace = poutine.trace(poutine.replay(layer, poutine.trace(guide).get_trace(x))).get_trace(x)
    loss = loss + trace.nodes["_RETURN"]["value"].square().sum()
    (gradient,) = torch.autograd.grad(
        loss, layer.log_scale, allow_unused=True, materialize_grads=True
    )
    assert gradient.abs().max() < 1e-9 * max(1.0, loss.abs().item())


def test_the_ksvd_term_alone_moves_the_scale():
    layer = KEPSVGPAttention(6, 2, rank=3, eta=1.0).double()
    x = randn64(5, 4, 6)
    TraceMeanField_ELBO().differentiable_loss(layer, guides.for_model(layer).double(), x).backward()
    assert layer.log_scale.grad.abs().min() > 1e-6


def test_a_prior_without_a_standard_deviation_has_a_robust_scale_that_is_saved():
    def cauchy(scale):
        return dist.Cauchy(torch.zeros_like(scale), scale).to_event(scale.dim())

    prior = cauchy(torch.full((3, 5), 4.0))
    for family in families.FAMILIES.values():
        torch.manual_seed(0)
        module = family(prior)
        assert_close(
            module.state_dict()["scale"], torch.full((3, 5), 4 * 1.4826), rtol=0.25, atol=0
        )
        assert_close(module(prior).mean, module.scale * next(module.parameters()))
        assert "scale" not in family(priors.normal(torch.ones(3, 5))).state_dict()


def test_a_point_mass_on_another_support_is_the_mode_of_the_unconstrained_variable():
    """For u = exp(v) the objective has the Jacobian's log u, and the whitening's scale, a
    constant."""
    prior = dist.Gamma(torch.tensor([2.0, 3.0, 5.0]), torch.tensor(1.5)).to_event(1)
    module = families.on_support(families.Delta, prior)
    q = module(prior)
    density_of_v = prior.log_prob(q.v) + q.v.log().sum()
    assert_close(kl_divergence(q, prior), -density_of_v - module.scale.log().sum())
