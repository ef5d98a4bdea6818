"""A user's guides of local sites of this library."""

import elbos
import pyro
import pyro.distributions as dist
import pytest
import torch
from idioms import Program, classifier
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO, autoguide

from probattn import CGPAttention, SGPAttention, guides, local_posteriors
from probattn.inference import predict

pytestmark = pytest.mark.filterwarnings("ignore:Found plate statements in guide but not model")


def made(layer, number):
    return classifier(layer, num_data=number), torch.randn(number, 4, 8), torch.arange(number) % 3


def test_a_users_guide_of_a_local_site_is_drawn_anew_for_each_draw():
    model, x, y = made(SGPAttention(8, 2, inducing=3), 5)

    def program(x, y=None, mask=None):
        pyro.sample("network.0.u", dist.Normal(torch.zeros(2, 4, 3), 1.0).to_event(3))
        with pyro.plate("examples", len(x), dim=-1):
            pyro.sample("network.0.g", dist.Normal(torch.zeros(2, 4, 4), 2.0).to_event(3))

    guide = Program(program)
    prediction = predict(model, guide, x, num_samples=50, keep_draws=True)
    assert len(prediction.draws[:, 0].unique(dim=0)) == 50
    assert (prediction.mutual_information > 0.01).all()
    elbos.assert_agree(
        *(elbos.losses(e, model, guide, x, y, number=300) for e in (elbos.Trace_ELBO, Trace_ELBO))
    )


def test_a_users_guide_of_z_o_has_the_layers_weight_under_every_elbo():
    model, x, y = made(CGPAttention(8, 2, output="mean", noise=0.5), 12)

    def program(x, y=None, mask=None):
        with pyro.plate("data", len(x)):
            pyro.sample("network.0.z_o", dist.Normal(torch.zeros(2, 4, 4), 0.9).to_event(3))

    kinds = (Trace_ELBO, TraceMeanField_ELBO, elbos.Trace_ELBO, elbos.TraceMeanField_ELBO)
    elbos.assert_agree(*(elbos.losses(kind, model, Program(program), x, y) for kind in kinds))
    with pytest.raises(
        ValueError, match="z_o has a weight in its layer, which an AutoGuide cannot follow"
    ):
        Trace_ELBO().loss(model, autoguide.AutoNormal(model), x, y)


def test_a_conditioned_local_site_needs_no_guide_in_svi():
    model, x, y = made(SGPAttention(8, 2, inducing=3), 5)
    conditioned = pyro.condition(model, data={"network.0.g": torch.randn(5, 2, 4, 4)})
    guide, programs = guides.for_model(conditioned), (conditioned, local_posteriors(conditioned))
    elbos.assert_agree(
        *(elbos.losses(Trace_ELBO, program, guide, x, y, number=200) for program in programs)
    )
