"""AutoGuides of Pyro on layers of this library."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, autoguide
from torch.testing import assert_close

from probattn import guides, inference
from probattn.inference import TrainOptions, fit, posterior_predictive_check, predict
from probattn.models import Supervised

N, SIGMA = 12, 0.4
AUTOGUIDES = {
    "AutoNormal": autoguide.AutoNormal,
    "AutoDiagonalNormal": autoguide.AutoDiagonalNormal,
    "AutoMultivariateNormal": autoguide.AutoMultivariateNormal,
    "AutoLowRankMultivariateNormal": autoguide.AutoLowRankMultivariateNormal,
    "AutoIAFNormal": lambda model: autoguide.AutoIAFNormal(model, hidden_dim=[8]),
    "AutoDelta": autoguide.AutoDelta,
    "AutoLaplaceApproximation": autoguide.AutoLaplaceApproximation,
    "AutoGaussian": lambda model: autoguide.AutoGaussian(model, backend="dense"),
    "AutoStructured": autoguide.AutoStructured,
    "AutoNormalMessenger": autoguide.AutoNormalMessenger,
    "AutoHierarchicalNormalMessenger": autoguide.AutoHierarchicalNormalMessenger,
    "AutoRegressiveMessenger": autoguide.AutoRegressiveMessenger,
}
FAST = ("AutoNormal", "AutoMultivariateNormal", "AutoStructured", "AutoNormalMessenger")
"""Common ones of each construction; `make test-all` runs all."""


@pytest.mark.parametrize(
    "auto", [auto if auto in FAST else pytest.param(auto, marks=pytest.mark.slow) for auto in AUTOGUIDES]
)
def test_every_autoguide_of_pyro_finds_the_posterior_mean(idioms, problem, auto):
    model, x, y = problem
    _, location, precision, features, intercept = idioms.conjugate(model, x, y)
    guide = AUTOGUIDES[auto](model)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.98}), Trace_ELBO(num_particles=4))
    for _ in range(150):
        svi.step(x, y)
    if auto == "AutoLaplaceApproximation":
        guide = guide.laplace_approximation(x, y)
    found = predict(model, guide, [(x, y)], num_samples=300)
    deviation = (features @ torch.linalg.inv(precision) @ features.T).diagonal().sqrt()
    assert ((found.mean - intercept - features @ location).abs() < 0.6 * deviation + 0.05).all()


def test_an_autoguide_list_combines_guides_of_a_layers_site_and_of_a_users_own(problem):
    model, x, y = problem

    def own(x, y=None):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(model.mean(x) + shift, SIGMA), obs=y)

    guide = autoguide.AutoGuideList(own)
    guide.append(autoguide.AutoNormal(poutine.block(own, expose=["shift"])))
    guide.append(autoguide.AutoMultivariateNormal(poutine.block(own, expose=["attention.u"])))
    svi = SVI(own, guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    losses = [svi.step(x, y + 2.0) for _ in range(200)]
    assert sum(losses[-20:]) < sum(losses[:20]) - 100


def test_stock_svi_finds_a_gamma_posterior():
    """y ~ Poisson(r), r ~ Gamma(2, 1): posterior Gamma(2 + Σy, 1 + n); sites of AutoGuides are mapped points."""
    y = torch.tensor([2.0, 3.0, 1.0, 4.0])

    def program(x, y=None):
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        with pyro.plate("data", 4):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    exact = dist.Gamma(2 + y.sum(), 5.0)
    for auto in (autoguide.AutoNormal, autoguide.AutoStructured):
        guide = auto(program)
        elbo = Trace_ELBO(num_particles=16, vectorize_particles=True, max_plate_nesting=1)
        svi = SVI(program, guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.99}), elbo)
        for _ in range(400):
            svi.step(torch.zeros(4), y)
        rate = torch.stack([guide(torch.zeros(4))["rate"].detach() for _ in range(500)])
        assert abs(rate.mean() - exact.mean) < 0.12
        assert abs(rate.std() - exact.stddev) < 0.12


def test_a_bayesian_head_trains_and_predicts_draw_after_draw(idioms, caplog):
    network = idioms.Head()
    x = 3 * torch.randn(N, 3, 4)
    features = network.attention(x).mean(-2)
    y = features @ torch.randn(4, 1) + SIGMA * torch.randn(N, 1)
    model = Supervised(network, idioms.Known(), num_data=N)
    guide = guides.for_model(model, rest=autoguide.AutoMultivariateNormal)
    fit(model, guide, [(x, y)] * 20, options=TrainOptions(epochs=15, lr=0.1, num_particles=4), progress=False)
    assert "one after another" in caplog.text
    found = predict(model, guide, [(x, y)], num_samples=400)
    precision = torch.eye(4) + features.T @ features / SIGMA**2
    mean = features @ torch.linalg.solve(precision, features.T @ y / SIGMA**2)
    variance = (features @ torch.linalg.inv(precision) @ features.T).diagonal().unsqueeze(-1) + SIGMA**2
    assert_close(found.mean, mean, atol=0.12, rtol=0)
    assert_close(found.variance, variance, atol=0.05, rtol=0.15)
    check = posterior_predictive_check(model, guide, [(x[:7], y[:7]), (x[7:], y[7:])], num_replicates=100)
    assert check.replicated_labels.shape == (100, N, 1)
    assert_close(check.replicated_labels.mean(0), mean, atol=0.25, rtol=0)
    drawn = inference.posterior_draws(model, guide, [(x, y)], num_samples=300)["network.head.weight"]
    exact = torch.linalg.solve(precision, features.T @ y / SIGMA**2).T
    assert_close(drawn.mean(0), exact, atol=0.15, rtol=0)
