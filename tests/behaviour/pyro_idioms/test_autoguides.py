"""AutoGuides of Pyro on layers of this library."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from idioms import SIGMA, N, Regression, conjugate
from pyro.infer import SVI, Predictive, Trace_ELBO, autoguide
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.testing import assert_close

from probattn import SoftmaxAttention, guides, inference
from probattn.inference import TrainOptions, fit, predict
from probattn.models import Supervised
from probattn.models.likelihoods import Gaussian

FAST = ("AutoNormal", "AutoMultivariateNormal", "AutoStructured", "AutoNormalMessenger")
"""Common ones of each construction; `make test-all` runs all."""
OTHERS = (
    "AutoDiagonalNormal",
    "AutoLowRankMultivariateNormal",
    "AutoIAFNormal",
    "AutoDelta",
    "AutoGaussian",
)
OTHERS += ("AutoLaplaceApproximation", "AutoHierarchicalNormalMessenger", "AutoRegressiveMessenger")
OPTIONS = {"AutoIAFNormal": {"hidden_dim": [8]}, "AutoGaussian": {"backend": "dense"}}


@pytest.mark.parametrize(
    "auto", [*FAST, *(pytest.param(auto, marks=pytest.mark.slow) for auto in OTHERS)]
)
def test_every_autoguide_of_pyro_finds_the_posterior_mean(problem, auto):
    model, x, y = problem
    exact, guide = conjugate(model, x, y), getattr(autoguide, auto)(model, **OPTIONS.get(auto, {}))
    svi = SVI(
        model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.97}), Trace_ELBO(num_particles=4)
    )
    for _ in range(90):
        svi.step(x, y)
    if auto == "AutoLaplaceApproximation":
        guide = guide.laplace_approximation(x, y)
    prediction = predict(model, guide, [(x, y)], num_samples=300)
    assert ((prediction.mean - exact.mean).abs() < 0.6 * exact.variance.sqrt() + 0.05).all()


class Shifted(Regression):
    def forward(self, x, y=None):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(self.mean(x) + shift, SIGMA), obs=y)


@pytest.mark.parametrize("of_layer", [autoguide.AutoMultivariateNormal, guides.for_model])
def test_an_autoguide_list_combines_guides_of_a_layers_site_and_of_a_users_own(of_layer):
    model, x, y = Shifted(), torch.randn(N, 3, 4), 2 + torch.randn(N)
    guide = autoguide.AutoGuideList(model)
    guide.append(autoguide.AutoNormal(poutine.block(model, expose=["shift"])))
    guide.append(of_layer(poutine.block(model, hide=["shift", "y"])))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.04}), Trace_ELBO())
    losses = [svi.step(x, y) for _ in range(100)]
    assert sum(losses[-20:]) < sum(losses[:20]) - 100


class Head(PyroModule):
    """Mean token and a Bayesian linear head."""

    def __init__(self):
        super().__init__()
        self.attention = SoftmaxAttention(4, 2).requires_grad_(False)
        self.head = PyroModule[nn.Linear](4, 1, bias=False)
        self.head.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 4]).to_event(2))

    def forward(self, x):
        return self.head(self.attention(x).mean(-2))


@pytest.mark.parametrize("number", [1, 4, N])
@pytest.mark.parametrize("guided", [False, True])
def test_predictive_takes_a_bayesian_head_draw_after_draw_alone(number, guided):
    """Its weights ``(samples, 1, 1, 4)`` are no matrix, whatever the number of samples."""
    model, x = Supervised(Head(), Gaussian(SIGMA), num_data=N).eval(), torch.randn(N, 3, 4)
    guide = guides.for_model(model, rest=autoguide.AutoNormal) if guided else None
    if guided:
        guide(x, torch.zeros(N, 1))  # an AutoGuide's first call has the labels
    sampled = Predictive(model, guide=guide, num_samples=number)(x)
    assert len(sampled["network.head.weight"].flatten(1).unique(dim=0)) == number
    parallel = Predictive(model, guide=guide, num_samples=number, parallel=True)
    with pytest.raises(RuntimeError, match="2 dimensions|2D|2-D"):
        parallel(x)


def test_a_bayesian_head_trains_and_predicts_draw_after_draw(caplog):
    network, x = Head(), 3 * torch.randn(N, 3, 4)
    features = network.attention(x).mean(-2)
    y = features @ torch.randn(4, 1) + SIGMA * torch.randn(N, 1)
    model = Supervised(network, lambda outputs: dist.Normal(outputs, SIGMA).to_event(1), num_data=N)
    guide = guides.for_model(model, rest=autoguide.AutoMultivariateNormal)
    fit(
        model,
        guide,
        [(x, y)] * 20,
        options=TrainOptions(epochs=7, lr=0.1, num_particles=4),
        progress=False,
    )
    assert "one after another" in caplog.text
    caplog.clear()
    prediction = predict(model, guide, [(x, y)], num_samples=400)
    assert "one after another" in caplog.text
    precision = torch.eye(4) + features.T @ features / SIGMA**2
    weight = torch.linalg.solve(precision, features.T @ y / SIGMA**2)
    covariance = torch.linalg.inv(precision)
    of_functions = (features @ covariance @ features.T).diagonal().unsqueeze(-1)
    # SVI ends within half a posterior standard deviation; 5 standard errors of the samples.
    tolerance = (0.5 + 5 / 400**0.5) * of_functions.sqrt()
    assert ((prediction.mean - features @ weight).abs() <= tolerance).all()
    assert_close(prediction.variance, of_functions + SIGMA**2, atol=0.05, rtol=0.5)
    sampled = inference.posterior_draws(model, guide, [(x, y)], num_samples=300)
    difference = sampled["network.head.weight"].mean(0) - weight.T
    tolerance = (0.5 + 5 / 300**0.5) * covariance.diagonal().sqrt()
    assert (difference.abs() <= tolerance).all()
