"""Plates of a user and Predictive around layers of this library."""

import copy

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from elbos import assert_agree, losses
from idioms import SIGMA, N, Pool, Regression
from pyro.infer import Predictive, Trace_ELBO, autoguide
from torch import nn
from torch.testing import assert_close

from probattn import KEPSVGPAttention, SGPAttention, guides, local_posteriors
from probattn.inference import predict
from probattn.inference.objective import guide_checks
from probattn.models import Classifier


@pytest.mark.parametrize(
    "layer", [KEPSVGPAttention.partial(rank=2), SGPAttention.partial(inducing=3)]
)
def test_a_layer_has_one_log_joint_inside_and_outside_a_users_plate(layer):
    attention, head = layer(8, 2), nn.Linear(8, 3)
    x, y = torch.randn(5, 4, 8), torch.arange(5) % 3

    def outside(x, y):
        logits = head(attention(x).mean(-2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    def inside(x, y, size=5):
        with pyro.plate("data", size, subsample=torch.arange(5)):
            pyro.sample("y", dist.Categorical(logits=head(attention(x).mean(-2))), obs=y)

    guide = guides.for_model(local_posteriors(attention))
    model = Classifier(nn.Sequential(*copy.deepcopy((attention, Pool(), head))), num_data=50)
    trained = guides.for_model(local_posteriors(model))
    trained.load_state_dict(
        {f"network.0.{name}": value for name, value in guide.state_dict().items()}
    )
    values = []
    for program, its_guide in (
        (outside, guide),
        (inside, guide),
        (lambda x, y: inside(x, y, size=50), guide),
        (model, trained),
    ):
        torch.manual_seed(2)
        values.append(Trace_ELBO().loss(local_posteriors(program), its_guide, x, y))
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert values[2] == pytest.approx(values[3], rel=1e-5)
    assert poutine.trace(inside).get_trace(x, y).nodes["u"]["fn"].batch_shape == ()


def test_a_subsampled_plate_gives_model_and_guide_the_same_examples():
    """Local sites come from a run of the model in the guide, which must draw the same indices
    (SGPA's g)."""
    attention, head = SGPAttention(8, 2, inducing=3), nn.Linear(8, 3)
    x, y = torch.randn(20, 4, 8), torch.arange(20) % 3

    def model(x, y, size=5):
        with pyro.plate("data", 20, subsample_size=size) as index:
            pyro.sample(
                "y", dist.Categorical(logits=head(attention(x[index]).mean(-2))), obs=y[index]
            )

    guide, program = guides.for_model(local_posteriors(attention)), local_posteriors(model)
    assert_agree(*(losses(Trace_ELBO, program, guide, x, y, size=size) for size in (5, 20)))


class Plated(Regression):
    """A global site of a user's own in a plate at dimension −1 that is not the plate of the
    examples."""

    def forward(self, x, y=None):
        with pyro.plate("features", 4):
            weight = pyro.sample("weight", dist.Normal(0.0, 1.0))
        mean = (self.attention(x).mean(-2) * weight).sum(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, SIGMA), obs=y)


@pytest.mark.parametrize("number", [5, N, 200])
def test_a_plate_of_a_users_own_is_not_the_plate_of_the_examples(number):
    model, x = Plated(), torch.randn(N, 3, 4)
    guide = guides.for_model(
        model, rest=lambda program: autoguide.AutoNormal(program, init_scale=1.0)
    )
    guide_checks.materialise(guide, (x, torch.zeros(N)))
    parts = predict(model, guide, [x[:1], x[:1]], num_samples=number)
    assert_close(parts.mean[0], parts.mean[1])  # draw s is one function on all batches
    if number == 200:
        sampled = Predictive(model, guide=guide, num_samples=400)(x)["y"]
        assert_close(
            predict(model, guide, x, num_samples=400).variance, sampled.var(0), rtol=0.3, atol=0.02
        )
