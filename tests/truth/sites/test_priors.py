"""Priors: scaled by λ elementwise, with the event of the scale."""

import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from float64 import tensor64
from torch.testing import assert_close

from probattn import KEPSVGPAttention, draws, guides, priors

SCALE = tensor64([[0.5, 1.0, 2.0], [3.0, 0.1, 0.7]])
U = tensor64([[0.2, -1.0, 4.0], [1.0, 0.3, -0.6]])


@pytest.mark.parametrize(
    ("prior", "reference"),
    [
        (priors.normal, dist.Normal(torch.zeros_like(SCALE), SCALE)),
        (priors.laplace, dist.Laplace(torch.zeros_like(SCALE), SCALE)),
        (priors.student_t(5.0), dist.StudentT(5.0, torch.zeros_like(SCALE), SCALE)),
    ],
)
def test_density_and_spread_are_elementwise(prior, reference):
    distribution = prior(SCALE)
    assert (distribution.batch_shape, distribution.event_shape) == ((), (2, 3))
    assert_close(distribution.log_prob(U), reference.log_prob(U).sum())
    assert_close(distribution.stddev, reference.stddev.expand(2, 3).double())


@pytest.mark.parametrize("prior", priors.PRIORS)
def test_scaling_the_site_and_lambda_changes_the_density_by_the_jacobian(prior):
    def log_prob(scale, u):
        torch.manual_seed(0)  # of hyperparameters
        return priors.resolve(prior)(scale).log_prob(u)

    assert_close(
        log_prob(3 * SCALE, 3 * U), log_prob(SCALE, U) - 6 * torch.tensor(3.0).double().log()
    )


@pytest.mark.parametrize("prior", [priors.Horseshoe(), priors.ARD()])
def test_draws_of_a_hierarchical_prior_have_hyperparameters_of_their_own(prior):
    """log p(u | hyperparameters) of each draw is that of its own row."""
    model = KEPSVGPAttention(8, 2, rank=2, prior=prior)
    with draws(50), poutine.trace() as traced:
        guides.sample_priors(model)
    values = {
        name: node["value"][:, 0]
        for name, node in traced.trace.nodes.items()
        if node["type"] == "sample"
    }
    assert all(len(value.flatten(1).unique(dim=0)) == 50 for value in values.values())
    u = traced.trace.nodes["u"]
    if isinstance(prior, priors.Horseshoe):
        scale = values["prior.tau"] * values["prior.zeta"]
    else:
        scale = values["prior.precision"].rsqrt()
    expected = dist.Normal(0.0, scale.expand(50, 2, 2, 2)).log_prob(values["u"]).sum((1, 2, 3))
    assert_close(u["fn"].log_prob(u["value"])[:, 0], expected)


def test_a_mixture_of_normals_is_a_prior_like_any_other():
    def spike_and_slab(scale):
        scales = torch.stack([0.1 * scale, 2 * scale], dim=-1)
        weights = dist.Categorical(torch.tensor([0.8, 0.2]).expand(scales.shape))
        return dist.MixtureSameFamily(
            weights, dist.Normal(torch.zeros_like(scales), scales)
        ).to_event(scale.dim())

    layer = KEPSVGPAttention(4, 2, rank=2, prior=spike_and_slab)
    guide = guides.for_model(layer, "diagonal")
    trace = poutine.trace(guide).get_trace()
    replayed = poutine.trace(poutine.replay(layer, trace)).get_trace(torch.randn(1, 3, 4))
    u = trace.nodes["u"]["value"]
    parts = [dist.Normal(0, factor * layer.scale).log_prob(u) for factor in (0.1, 2.0)]
    expected = torch.logaddexp(
        parts[0] + torch.tensor(0.8).log(), parts[1] + torch.tensor(0.2).log()
    )
    assert_close(replayed.nodes["u"]["fn"].log_prob(u), expected.sum())
