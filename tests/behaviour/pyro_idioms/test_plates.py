"""Plates of a user and Predictive around layers of this library."""

import copy
import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Predictive, Trace_ELBO, autoguide
from pyro.nn import PyroModule
from torch import nn
from torch.testing import assert_close

from probattn import KEPSVGPAttention, SGPAttention, guides, local_posteriors
from probattn.inference import predict
from probattn.inference.objective import guide_checks
from probattn.models import Classifier

N, SIGMA = 12, 0.4


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("number", [N, 400])
def test_predictive_gives_the_posterior_predictive(idioms, problem, parallel, number):
    """Also with as many draws as examples, which must not be paired."""
    model, x, y = problem
    guide = guides.for_model(model)
    found = Predictive(model, guide=guide, num_samples=number, parallel=parallel)(x)
    _, _, _, features, intercept = idioms.conjugate(model, x, y)
    u = found["attention.u"].reshape(number, 4)
    residual = found["y"] - intercept - u @ features.T
    assert found["y"].shape == (number, N)
    assert abs(residual.mean()) < 5 * SIGMA / (number * N) ** 0.5
    assert abs(residual.std() / SIGMA - 1) < 5 / (2 * number * N) ** 0.5


@pytest.mark.parametrize("layer", [KEPSVGPAttention.partial(rank=2), SGPAttention.partial(inducing=3)])
def test_a_layer_has_one_log_joint_inside_and_outside_a_users_plate(idioms, layer):
    attention, head = layer(8, 2), nn.Linear(8, 3)
    x, y = torch.randn(5, 4, 8), torch.arange(5) % 3

    def outside(x, y):
        logits = head(attention(x).mean(-2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    def inside(x, y):
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=head(attention(x).mean(-2))), obs=y)

    def subsampled(x, y):
        with pyro.plate("data", 50, subsample=torch.arange(5)):
            pyro.sample("y", dist.Categorical(logits=head(attention(x).mean(-2))), obs=y)

    network = PyroModule[nn.Sequential](*copy.deepcopy((attention, idioms.Mean(), head)))
    guide = guides.for_model(attention)
    model = Classifier(network, num_data=50)
    trained = guides.for_model(model)
    trained.load_state_dict({f"network.0.{name}": value for name, value in guide.state_dict().items()})
    losses = []
    for program, own in ((outside, guide), (inside, guide), (subsampled, guide), (model, trained)):
        torch.manual_seed(2)
        losses.append(Trace_ELBO().loss(local_posteriors(program), own, x, y))
    assert math.isclose(losses[0], losses[1], rel_tol=1e-5)
    assert math.isclose(losses[2], losses[3], rel_tol=1e-5)
    trace = poutine.trace(inside).get_trace(x, y)
    assert trace.nodes["u"]["fn"].batch_shape == ()


def test_a_subsampled_plate_gives_model_and_guide_the_same_examples():
    """Local sites come from a run of the model in the guide, which must draw the same indices (SGPA's g)."""
    attention, head = SGPAttention(8, 2, inducing=3), nn.Linear(8, 3)
    x, y = torch.randn(20, 4, 8), torch.arange(20) % 3

    def model(x, y, size=5):
        with pyro.plate("data", 20, subsample_size=size) as index:
            pyro.sample("y", dist.Categorical(logits=head(attention(x[index]).mean(-2))), obs=y[index])

    guide = guides.for_model(attention)
    part, whole = (
        torch.tensor([Trace_ELBO().loss(local_posteriors(model), guide, x, y, size=size) for _ in range(100)])
        for size in (5, 20)
    )
    assert (part.mean() - whole.mean()).abs() < 5 * ((part.var() + whole.var()) / 100).sqrt()


@pytest.mark.parametrize("number", [5, N, 200])
def test_a_plate_of_a_users_own_is_not_the_plate_of_the_examples(idioms, problem, number):
    _, x, _ = problem
    model = idioms.Plated()
    guide = guides.for_model(model, rest=lambda program: autoguide.AutoNormal(program, init_scale=1.0))
    guide_checks.materialise(guide, (x, torch.zeros(N)))
    parts = predict(model, guide, [x[:1], x[:1]], num_samples=number)
    assert_close(parts.mean[0], parts.mean[1])  # draw s is one function on all batches
    if number == 200:
        drawn = Predictive(model, guide=guide, num_samples=400)(x)["y"]
        assert_close(predict(model, guide, x, num_samples=400).variance, drawn.var(0), rtol=0.3, atol=0.02)
