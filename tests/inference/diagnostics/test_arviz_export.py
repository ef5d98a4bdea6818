"""ArviZ on an export, against numbers computed by hand from its tensors."""

import math

import arviz_stats as az
import numpy as np
import pyro.poutine as poutine
import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference.diagnostics import arviz_export
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

DRAWS, N = 200, 9


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(-2)


def build(attention=KEPSVGPAttention.partial(rank=2), likelihood=None):  # noqa: B008
    network = nn.Sequential(attention(4, 2), Pool(), nn.Linear(4, 3))
    with torch.no_grad():
        network[2].weight.mul_(2)
    model = Supervised(network, likelihood or Categorical(), num_data=N)
    x, y = torch.randn(N, 5, 4), torch.tensor([0, 1, 2, 1, 1, 0, 2, 2, 1])
    return model, guides.for_model(model), [(x[:5], y[:5]), (x[5:], y[5:])]


def exported(model, guide, data):
    torch.manual_seed(0)
    return arviz_export.to_datatree(model, guide, data, num_samples=DRAWS)


def test_groups_hold_what_the_model_draws_draw_by_draw():
    """Every row of both groups of latent sites gives the likelihood, and the labels, of that row."""
    model, guide, data = build()
    with torch.no_grad():
        model.network[2].weight.mul_(1e6)
    tree = exported(model, guide, data)
    assert list(tree.children) == [
        "posterior",
        "posterior_predictive",
        "log_likelihood",
        "prior",
        "prior_predictive",
        "observed_data",
    ]
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    np.testing.assert_array_equal(tree.observed_data.y, y)
    model.eval()
    for latents, labels in ((tree.posterior, tree.posterior_predictive), (tree.prior, tree.prior_predictive)):
        assert list(latents.data_vars) == ["network.0.u"]
        assert labels.y.dims == ("chain", "draw", "example")
        for s in range(DRAWS):
            u = torch.tensor(latents["network.0.u"].values[0, s])
            with torch.no_grad():
                trace = poutine.trace(poutine.condition(model, data={"network.0.u": u})).get_trace(x)
            likelihood = trace.nodes["y"]["fn"]
            np.testing.assert_array_equal(labels.y.values[0, s], likelihood.probs.argmax(-1))
            if latents is tree.posterior:
                expected = likelihood.log_prob(y).clamp(min=math.log(torch.finfo(torch.float32).tiny))
                np.testing.assert_allclose(tree.log_likelihood.y.values[0, s], expected, rtol=1e-3, atol=1e-3)
    spread = [group["network.0.u"].values.std(1).mean() for group in (tree.posterior, tree.prior)]
    assert spread == pytest.approx([0.1, 1.0], rel=0.1)  # a new guide has a tenth of the prior's scale


def test_loo_is_that_of_the_log_likelihood():
    """PSIS-LOO is near exact leave-one-out weights, which are 1 / likelihood."""
    model, guide, data = build()
    tree = exported(model, guide, data)
    log_likelihood = tree.log_likelihood.y.values[0].astype(np.float64)
    loo = az.loo(tree, pointwise=True)
    exact = -np.log(np.exp(-log_likelihood).mean(0))
    np.testing.assert_allclose(loo.elpd_i, exact, rtol=0.02)
    assert (loo.n_data_points, loo.n_samples) == (N, DRAWS)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int32])
def test_labels_of_any_integer_type_become_signed_integers(dtype):
    model, guide, data = build()
    tree = exported(model, guide, [(x, (y > 0).to(dtype)) for x, y in data])
    assert tree.observed_data.y.dtype == tree.posterior_predictive.y.dtype == np.int64
    np.testing.assert_array_equal(tree.observed_data.y, torch.cat([y for _, y in data]) > 0)
