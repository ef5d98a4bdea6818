"""Pyro's plates of samples and of particles around models and guides: each draw is one of its
own."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from idioms import SIGMA, N, Regression, conjugate
from pyro.infer import Predictive, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, autoguide
from pyro.nn import PyroModule, PyroSample
from torch.testing import assert_close

from probattn import KEPSVGPAttention, draws, guides, name_layers
from probattn.inference import ELBOLoss, predict
from probattn.inference.objective import guide_checks
from probattn.inference.posterior.branches import Branches


def distinct(values):
    return len(values.flatten(1).unique(dim=0))


class Unplated(Regression):
    """The labels of all examples are one event, and no plate is there."""

    def __init__(self, **options):
        super().__init__(eta=0.3, **options)

    def forward(self, x, y=None):
        return pyro.sample("y", dist.Normal(self.mean(x), SIGMA).to_event(1), obs=y)


GUIDES = {
    "for_model": guides.for_model,
    "AutoNormal": lambda model: autoguide.AutoNormal(model, init_scale=0.5),
    "none": lambda model: None,
}


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("kind", [Regression, Unplated])
@pytest.mark.parametrize("number", [N, 300])
def test_predictive_has_a_draw_of_u_for_each_sample(parallel, guide, kind, number):
    """As many distinct draws as samples, and each label around the function of its own draw."""
    model, x = kind(), torch.randn(N, 3, 4)
    exact, its_guide = conjugate(model, x, torch.zeros(N)), GUIDES[guide](model)
    if its_guide is not None:
        guide_checks.materialise(its_guide, (x, torch.zeros(N)))
    sites = ("attention.u", "y")
    sampled = Predictive(
        model,
        guide=its_guide,
        num_samples=number,
        parallel=parallel,
        return_sites=sites,
    )(x)
    u, y = (sampled[site] for site in sites)
    assert distinct(u) == number
    expected = exact.intercept + u.reshape(number, 4) @ exact.features.T
    residual = y.reshape(number, N) - expected
    assert abs(residual.mean()) < 5 * SIGMA / (number * N) ** 0.5
    assert abs(residual.square().mean() / SIGMA**2 - 1) < 5 * (2 / (number * N)) ** 0.5


@pytest.mark.parametrize("dim", [-1, -2])
def test_a_plate_around_a_guide_has_a_draw_for_each_row(problem, dim):
    model, x, _ = problem
    guide = guides.for_model(model)
    with pyro.plate("k", 7, dim=dim):
        u = guide(x)["attention.u"]
    assert u.shape == (7, *(1,) * (-1 - dim), 1, 2, 2)
    assert distinct(u) == 7


def test_the_loss_of_a_model_without_a_plate_is_exact(problem):
    """−ELBO of labels that are one event, with the factor of the layer, by hand."""
    _, x, y = problem
    model = Unplated()
    guide = guides.for_model(model, "delta")
    u = guide(x)["attention.u"]
    exact = conjugate(model, x, y)
    factor = model.attention.compute(x, None, scale=model.attention.scale, u=u)[1]["ksvd"].sum()
    likelihood = (
        dist.Normal(exact.intercept + exact.features @ u.flatten(), SIGMA).log_prob(y).sum()
    )
    v = (u / model.attention.scale).flatten()
    expected = -(likelihood + dist.Normal(0.0, 1.0).log_prob(v).sum() + factor)
    for options in ({}, {"num_particles": 5, "vectorize_particles": True}):
        loss = Trace_ELBO(**options).loss(model, guide, x, y)
        assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert ELBOLoss(model, guide)(x, y).item() == pytest.approx(expected.item(), rel=1e-4)


def test_prediction_refuses_labels_that_are_one_event():
    model, x = Unplated(), torch.randn(5, 3, 4)
    for number in (5, 30):
        with pytest.raises(ValueError, match="plate"):
            predict(model, guides.for_model(model), x, num_samples=number)


def branches(model, number=4):
    guide = Branches(model, branches=number)
    guide(torch.randn(N, 3, 4), torch.zeros(N))
    return guide


def test_branches_give_each_point_equally_often_in_every_way_to_draw(problem):
    model, x, _ = problem
    guide = branches(model)
    points = torch.stack([point(x)["attention.u"] for point in guide.points]).flatten(1)

    def check(u):
        counts = [(u.flatten(1) == point).all(-1).sum() for point in points]
        assert [int(count) for count in counts] == [2, 2, 2, 2]

    check(torch.stack([guide(x)["attention.u"] for _ in range(8)]))
    with draws(8):
        check(guide(x)["attention.u"])
    with pyro.plate("k", 8, dim=-2):
        check(guide(x)["attention.u"])
    for parallel in (False, True):
        check(
            Predictive(
                model, guide=guide, num_samples=8, parallel=parallel, return_sites=["attention.u"]
            )(x)["attention.u"]
        )


@pytest.mark.parametrize("vectorize", [False, True])
def test_branches_predict_by_all_points_and_the_same_with_a_seed(problem, vectorize):
    model, x, _ = problem
    guide, exact = branches(model), conjugate(model, x, torch.zeros(N))
    points = torch.stack([point(x)["attention.u"] for point in guide.points]).flatten(1).detach()
    means = exact.intercept + points @ exact.features.T
    prediction = predict(model, guide, x, num_samples=8, vectorize=vectorize)
    assert_close(prediction.mean, means.mean(0))
    assert_close(prediction.variance, SIGMA**2 + means.var(0, correction=0))
    first, second = (
        predict(model, guide, x, num_samples=6, seed=0, vectorize=vectorize) for _ in range(2)
    )
    assert_close(first.mean, second.mean, rtol=0, atol=0)


class Discrete(PyroModule):
    """A discrete site c below the layer: y ~ N(w · attention(x + shift_c), σ²)."""

    def __init__(self, layer, *, plated):
        super().__init__()
        self.attention, self.plated = layer, plated
        name_layers(self)
        self.requires_grad_(False).eval()

    def forward(self, x, y=None):
        c = pyro.sample(
            "c", dist.Categorical(torch.tensor([0.3, 0.7])), infer={"enumerate": "parallel"}
        )
        shift = torch.tensor([0.0, 0.8])[c]
        inputs = x + shift.reshape(
            *shift.shape, *(1,) * (3 if not shift.dim() or not self.plated else 2)
        )
        law = dist.Normal(3 * self.attention(inputs).mean((-2, -1)), SIGMA)
        if not self.plated:
            return pyro.sample("y", law.to_event(1), obs=y)
        with pyro.plate("data", len(x), dim=-1):
            return pyro.sample("y", law, obs=y)


@pytest.mark.parametrize("plated", [True, False])
@pytest.mark.parametrize("nesting", [1, 2])
def test_a_discrete_site_below_a_layer_is_summed_out(plated, nesting):
    """The layer has a factor, and u is given: the loss is −log Σ_c p(c) p(y, factor | c)."""
    layer = KEPSVGPAttention(4, 1, rank=2, eta=0.5)
    model, x, y = Discrete(layer, plated=plated), torch.randn(5, 3, 4), torch.randn(5)
    u = torch.randn(1, 2, 2)
    program = poutine.condition(model, data={"attention.u": u})
    logs = []
    for c, share in enumerate((0.3, 0.7)):
        inputs = x + 0.8 * c
        with poutine.block():
            output, factors = layer.compute(inputs, None, scale=layer.scale, u=u)
        likelihood = dist.Normal(3 * output.mean((-2, -1)), SIGMA).log_prob(y).sum()
        logs.append(torch.tensor(share).log() + likelihood + factors["ksvd"].sum())
    prior = (
        dist.Normal(0.0, 1.0).log_prob(u / layer.scale.unsqueeze(-2)).sum()
        - 2 * layer.scale.log().sum()
    )
    expected = -(torch.stack(logs).logsumexp(0) + prior).item()
    nesting = nesting if plated else nesting - 1
    loss = TraceEnum_ELBO(max_plate_nesting=nesting).loss(program, lambda *_: None, x, y)
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", [Trace_ELBO, TraceMeanField_ELBO])
def test_an_enumerated_site_needs_the_elbo_that_enumerates(kind):
    model = Discrete(KEPSVGPAttention(4, 1, rank=2), plated=True)
    with pytest.raises(ValueError, match="TraceEnum_ELBO"):
        ELBOLoss(model, guides.for_model(model), kind())(torch.randn(5, 3, 4), torch.randn(5))


def test_a_random_lambda_is_drawn_for_each_particle(problem):
    """log λ ~ N(0, 1) as a PyroSample: the density of u given its own λ, also without a plate of
    examples."""
    _, x, _ = problem
    for kind in (Regression, Unplated):
        model = kind()
        pyro.nn.module.to_pyro_module_(model.attention)
        model.attention.log_scale = PyroSample(dist.Normal(torch.zeros(1, 2), 1.0).to_event(2))
        with pyro.plate("num_particles_vectorized", 50, dim=-1 if kind is Unplated else -2):
            trace = poutine.trace(model).get_trace(x)
        trace.compute_log_prob()
        node, scale = trace.nodes["attention.u"], trace.nodes["attention.log_scale"]["value"].exp()
        expected = dist.Normal(0.0, scale.unsqueeze(-2)).log_prob(node["value"]).sum((-3, -2, -1))
        assert_close(node["log_prob"], expected)
