"""A guide of K point masses against AutoDelta, a posterior of two modes, and an ensemble by
hand."""

import copy

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.nn import PyroModule, PyroSample
from small_vit import small_vit
from torch.testing import assert_close

from probattn import guides
from probattn.inference import TrainOptions, fit, predict
from probattn.inference.posterior.branches import Branches
from probattn.models import Classifier


def two_modes():
    w = pyro.sample("w", dist.Normal(0.0, 2.0))
    pyro.sample("y", dist.Normal(w**2, 0.1), obs=torch.tensor(4.0))


def test_the_objective_is_the_mean_of_those_of_its_points():
    guide = Branches(two_modes, branches=4)
    losses = [Trace_ELBO().loss(two_modes, guide) for _ in range(4)]
    expected = []
    for point in guide.points:
        with torch.no_grad():
            w = point()["w"]
        expected.append(
            -poutine.trace(poutine.condition(two_modes, {"w": w})).get_trace().log_prob_sum()
        )
    assert_close(torch.tensor(losses).sort().values, torch.stack(expected).sort().values)
    assert isinstance(guide.points[0], AutoDelta)


def test_a_head_that_branches_is_an_ensemble_of_heads():
    model = Classifier(small_vit("kep-svgp"), num_data=20)
    head = PyroModule[torch.nn.Linear](8, 3)
    head.weight = PyroSample(dist.Normal(0.0, 1.0).expand([3, 8]).to_event(2))
    model.network.head = head
    guide = guides.for_model(model, "delta", rest=Branches)
    x, y = torch.randn(20, 1, 4, 4), torch.randint(3, (20,))
    fit(model, guide, [(x, y)], options=TrainOptions(epochs=5), progress=False)
    prediction = predict(model, guide, x, num_samples=5)
    members = []
    for point in guide.rest.points:
        alone = copy.copy(guide)
        alone.rest = point
        members.append(predict(model, alone, x, num_samples=1).probs)
    assert torch.stack(members).std(0).max() > 0.01
    assert_close(prediction.probs, torch.stack(members).mean(0))
