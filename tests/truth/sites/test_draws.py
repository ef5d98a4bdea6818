"""Draws, KL weight and means at global sites, and what they leave unchanged."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch.testing import assert_close

from probattn import draws, local_site, local_sites
from probattn.draws import at_mean

X, Y = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.0, 3.0])
N = 30


def model(x, y=None):
    """Linear regression with a slope (event of size 2, summed) and one factor an example."""
    slope = pyro.sample("slope", dist.MultivariateNormal(torch.zeros(2), scale_tril=torch.eye(2)))
    with local_sites(batch=len(x), num_data=N):
        unit = dist.Unit(-x.square())
        pyro.sample("factor", unit, obs=unit.sample(), infer=local_site() | {"is_auxiliary": True})
        return pyro.sample("y", dist.Normal(slope.sum(-1) * x, 1.0), obs=y, infer=local_site())


MEAN = torch.tensor([0.3, -0.2])


def guide(x, y=None):
    return pyro.sample("slope", dist.MultivariateNormal(MEAN, scale_tril=0.5 * torch.eye(2)))


def test_draws_for_prediction_pair_by_number_even_when_it_equals_the_batch():
    for number in (2, 3):
        with draws(number):
            guide_trace = poutine.trace(guide).get_trace(X, Y)
            model_trace = poutine.trace(poutine.replay(model, guide_trace)).get_trace(X, Y)
        slope = guide_trace.nodes["slope"]["value"]
        assert slope.shape == (number, 1, 2)
        assert_close(model_trace.nodes["y"]["fn"].mean, slope.sum(-1) * X)
        model_trace.compute_log_prob()
        log_likelihood = dist.Normal(slope.sum(-1) * X, 1.0).log_prob(Y).sum(-1).mean()
        assert_close(model_trace.nodes["y"]["log_prob_sum"], N / 3 * log_likelihood)
        assert_close(model_trace.nodes["factor"]["log_prob_sum"], -N / 3 * X.square().sum())
        (frame,) = (
            frame for frame in model_trace.nodes["y"]["cond_indep_stack"] if frame.name == "data"
        )
        assert (frame.dim, frame.size, frame.full_size) == (-1, 3, N)


def test_example_without_a_batch_is_an_error():
    with draws("example"), pytest.raises(ValueError, match="found no batch"):
        pyro.sample("slope", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize("number", [0, -1, "batch", True, False])
def test_bad_numbers_are_named(number):
    with pytest.raises(ValueError, match="positive number"):
        draws(number)


def test_at_mean_takes_means_and_leaves_local_sites_alone():
    with at_mean():
        assert_close(guide(X), MEAN)
        trace = poutine.trace(model).get_trace(X)
    assert_close(trace.nodes["slope"]["value"], torch.zeros(2))
    assert trace.nodes["y"]["value"].abs().min() > 0
    with at_mean(), draws(4):
        assert_close(guide(X), MEAN.expand(4, 1, 2))
    with draws(4), at_mean():
        assert_close(guide(X).expand(4, 1, 2), MEAN.expand(4, 1, 2))


def plated(dim):
    def run(x):
        with pyro.plate("data", 3, dim=dim):
            pyro.sample("slope", dist.Normal(0.0, 1.0))

    return run


def test_draws_refuse_a_site_whose_plate_has_their_dimension():
    with (
        draws(4),
        pytest.raises(ValueError, match="slope is in a plate of dimension -2.*vectorize=False"),
    ):
        poutine.trace(plated(-2)).get_trace(X)


def test_a_site_in_a_users_plate_is_one_of_each_example():
    for number, shape, scale in (("example", (3,), 1.0), (4, (4, 3), 0.25)):
        with draws(number):
            site = poutine.trace(plated(-1)).get_trace(X).nodes["slope"]
        assert (site["fn"].batch_shape, site["scale"]) == (shape, scale)
    assert len(site["value"].unique()) == 12


FLOWS = {
    "planar": lambda: dist.transforms.planar(3),
    "conditioned planar": lambda: dist.transforms.conditional_planar(3, 2).condition(torch.ones(2)),
}


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("number", [4, "example"])
def test_flows_without_an_inverse_have_the_density_of_their_draws(flow, number):
    """log q(f(z)) = log N(z; 0, 1) − log |det f'(z)|, of draws whose z only the flow's cache
    knows."""
    transform = FLOWS[flow]()
    q = dist.TransformedDistribution(dist.Normal(torch.zeros(3), 1.0).to_event(1), [transform])

    def guide(x):
        return pyro.sample("u", q)

    with draws(number), torch.no_grad():
        trace = poutine.trace(guide).get_trace(torch.zeros(5))
        trace.compute_log_prob()
        node = trace.nodes["u"]
        z = transform.inv(node["value"])
        jacobian = transform.log_abs_det_jacobian(z, node["value"])
    expected = dist.Normal(0.0, 1.0).log_prob(z).sum(-1) - jacobian
    size = 5 if number == "example" else number
    assert len(node["value"].reshape(-1, 3).unique(dim=0)) == size
    torch.testing.assert_close(node["log_prob"], expected / size)
