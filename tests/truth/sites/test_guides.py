"""Guides: which KL are analytic and equal samples', q of each family, point masses, the prior's
present scale."""

import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch.distributions import kl_divergence
from torch.testing import assert_close
from two_layers import Regression, examples

from probattn import KEPSVGPAttention, families, guides, priors

ANALYTIC = {
    *(
        (prior, family)
        for prior in ("normal", "horseshoe", "ard")
        for family in ("full", "diagonal", "lowrank")
    ),
    ("laplace", "diagonal"),
    *((prior, "delta") for prior in priors.PRIORS),
}


@pytest.fixture
def data():
    return examples()


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("prior", priors.PRIORS)
def test_which_pairs_have_an_analytic_kl(prior, family):
    layer = KEPSVGPAttention(8, 2, rank=2, prior=prior)
    present = layer.sites()["u"]
    posterior = guides.for_model(layer, family).u(present)
    if (prior, family) not in ANALYTIC:
        with pytest.raises(NotImplementedError):
            kl_divergence(posterior, present)
        return
    kl = kl_divergence(posterior, present)
    samples = posterior.sample((20_000,))
    estimates = posterior.log_prob(samples) - present.log_prob(samples)
    assert kl.shape == ()
    assert (kl - estimates.mean()).abs() < 5 * estimates.std() / 20_000**0.5 + 1e-4


@pytest.mark.parametrize("family", ["full", "diagonal", "lowrank"])
def test_families_start_near_a_prior_draw_at_a_share_of_its_scale(family):
    prior = priors.normal(torch.full((2, 400, 3), 2.0))
    posterior = families.FAMILIES[family](prior)(prior)
    assert posterior.stddev.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.05)
    assert posterior.mean.std().item() == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("prior", "elbo"),
    [("normal", Trace_ELBO), ("laplace", TraceMeanField_ELBO), ("student_t", Trace_ELBO)],
)
def test_delta_maximises_the_density_of_the_whitened_variable(elbo, prior, data):
    """The loss with a point mass does not depend on Λ through p(u): d loss / d log λ comes from the
    KSVD term only."""
    model = Regression(prior)
    for layer in model.layers:
        layer.eta = 0.0
    guide = guides.for_model(model, "delta")
    loss = elbo()(model, guide)(*data)
    loss.backward()
    for layer in model.layers:
        assert layer.log_scale.grad.abs().max() < 1e-3 * loss.abs()
    unit = priors.resolve(prior)(torch.ones(2, 2, 2))
    whitened = [guide.get_submodule(f"layers.{i}.u").whitened * unit.stddev for i in range(2)]
    u = {f"layers.{i}.u": v * model.layers[i].scale.unsqueeze(-2) for i, v in enumerate(whitened)}
    trace = poutine.trace(poutine.condition(model, data=u)).get_trace(*data)
    trace.compute_log_prob()
    log_prior = sum(unit.log_prob(v) + unit.stddev.log().sum() for v in whitened)
    assert_close(loss, -(trace.nodes["y"]["log_prob_sum"] + log_prior), rtol=1e-4, atol=1e-2)
