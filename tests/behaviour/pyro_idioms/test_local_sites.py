"""A user's guides of local sites of this library."""

import elbos
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO, autoguide
from pyro.nn import PyroModule
from torch import nn

from probattn import CGPAttention, SGPAttention, guides, local_posteriors
from probattn.inference import predict
from probattn.models import Classifier


@pytest.mark.filterwarnings("ignore:Found plate statements in guide but not model")
def test_a_users_guide_of_a_local_site_is_drawn_anew_for_each_draw(idioms):
    model = Classifier(
        PyroModule[nn.Sequential](SGPAttention(8, 2, inducing=3), idioms.Mean(), nn.Linear(8, 3)), num_data=5
    )
    x, y = torch.randn(5, 4, 8), torch.arange(5) % 3

    def program(x, y=None, mask=None):
        pyro.sample("network.0.u", dist.Normal(torch.zeros(2, 4, 3), 1.0).to_event(3))
        with pyro.plate("examples", len(x), dim=-1):
            pyro.sample("network.0.g", dist.Normal(torch.zeros(2, 4, 4), 2.0).to_event(3))

    guide = idioms.Program(program)
    found = predict(model, guide, x, num_samples=50, keep_draws=True)
    assert len(found.draws[:, 0].unique(dim=0)) == 50
    assert (found.mutual_information > 0.01).all()
    ours = torch.tensor([elbos.Trace_ELBO().loss(model, guide, x, y) for _ in range(300)])
    theirs = torch.tensor([Trace_ELBO().loss(model, guide, x, y) for _ in range(300)])
    assert (ours.mean() - theirs.mean()).abs() < 5 * (ours.var() / 300 + theirs.var() / 300).sqrt()


@pytest.mark.filterwarnings("ignore:Found plate statements in guide but not model")
def test_a_users_guide_of_z_o_has_the_layers_weight_under_every_elbo(idioms):
    network = PyroModule[nn.Sequential](CGPAttention(8, 2, output="mean", noise=0.5), idioms.Mean(), nn.Linear(8, 3))
    model = Classifier(network, num_data=12)
    x, y = torch.randn(12, 4, 8), torch.arange(12) % 3

    def program(x, y=None, mask=None):
        with pyro.plate("data", len(x)):
            pyro.sample("network.0.z_o", dist.Normal(torch.zeros(2, 4, 4), 0.9).to_event(3))

    guide = idioms.Program(program)
    kinds = (Trace_ELBO, TraceMeanField_ELBO, elbos.Trace_ELBO, elbos.TraceMeanField_ELBO)
    values = [torch.tensor([kind().loss(model, guide, x, y) for _ in range(100)]) for kind in kinds]
    for each in values[1:]:
        assert (each.mean() - values[0].mean()).abs() < 5 * ((each.var() + values[0].var()) / 100).sqrt() + 1e-3
    with pytest.raises(ValueError, match="z_o has a weight in its layer, which an AutoGuide cannot follow"):
        Trace_ELBO().loss(model, autoguide.AutoNormal(model), x, y)


def test_a_conditioned_local_site_needs_no_guide_in_svi(idioms):
    model = Classifier(
        PyroModule[nn.Sequential](SGPAttention(8, 2, inducing=3), idioms.Mean(), nn.Linear(8, 3)), num_data=5
    )
    x, y, g = torch.randn(5, 4, 8), torch.arange(5) % 3, torch.randn(5, 2, 4, 4)
    conditioned = pyro.condition(model, data={"network.0.g": g})
    guide = guides.for_model(conditioned)
    values = [
        torch.tensor([Trace_ELBO().loss(program, guide, x, y) for _ in range(200)])
        for program in (conditioned, local_posteriors(conditioned))
    ]
    assert (values[0].mean() - values[1].mean()).abs() < 5 * ((values[0].var() + values[1].var()) / 200).sqrt()
