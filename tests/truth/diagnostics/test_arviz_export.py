"""ArviZ on an export, against numbers computed by hand from its tensors."""

import math

import arviz_stats as az
import numpy as np
import pyro.poutine as poutine
import pytest
import torch
from known_predictives import build

from probattn.inference.diagnostics import arviz_export

DRAWS, N, SITES = 200, 9, [f"network.layers.{i}.u" for i in (0, 1)]


@pytest.fixture
def exported():
    """The model, its inputs and labels, and its tree."""
    model, guide = build()
    with torch.no_grad():
        model.network.head.weight.mul_(2)
    x, y = torch.randn(N, 5, 3, dtype=torch.float64), (torch.arange(N) % 3).to(torch.uint8)
    data = [(x[:5], y[:5]), (x[5:], y[5:])]
    return model, x, y, arviz_export.to_datatree(model, guide, data, num_samples=DRAWS)


def test_groups_hold_what_the_model_draws_draw_by_draw(exported):
    model, x, y, tree = exported
    np.testing.assert_array_equal(tree.observed_data.y, y)
    assert (
        tree.observed_data.y.dtype == tree.posterior_predictive.y.dtype == np.int64
    )  # ArviZ plots no unsigned ones
    assert list(tree.posterior.data_vars) == list(tree.prior.data_vars) == SITES
    assert tree.prior_predictive.y.shape == (1, DRAWS, N)
    model.eval()
    for s in range(0, DRAWS, 10):
        u = {site: torch.tensor(tree.posterior[site].values[0, s]) for site in SITES}
        with torch.no_grad():
            likelihood = (
                poutine.trace(poutine.condition(model, data=u)).get_trace(x).nodes["y"]["fn"]
            )
        expected = likelihood.log_prob(y.long())
        np.testing.assert_allclose(tree.log_likelihood.y.values[0, s], expected, rtol=1e-6)
    spread = [group[SITES[0]].values.std(1).mean() for group in (tree.posterior, tree.prior)]
    assert spread == pytest.approx(
        [0.1, 1.0], rel=0.15
    )  # a new guide has a tenth of the prior's scale
    assert math.isclose(
        tree.posterior_predictive.y.mean(), tree.prior_predictive.y.mean(), rel_tol=0.3
    )


def test_leave_one_out_is_that_of_the_log_likelihood(exported):
    """PSIS-LOO is near exact leave-one-out weights, which are 1 / likelihood."""
    tree = exported[-1]
    exact = -np.log(np.exp(-tree.log_likelihood.y.values[0].astype(np.float64)).mean(0))
    loo = az.loo(tree, pointwise=True)
    np.testing.assert_allclose(loo.elpd_i, exact, rtol=0.02)
    assert (loo.n_data_points, loo.n_samples) == (N, DRAWS)
