"""Modules are silent about their parameters in our ELBOs, unless a handler outside listens."""

import pyro.poutine as poutine
import pytest
import torch
from pyro.poutine.messenger import Messenger

from probattn import KEPSVGPAttention, guides
from probattn.inference import Trace_ELBO, TraceMeanField_ELBO
from probattn.models import Classifier, ViT

ELBOS = pytest.mark.parametrize("kind", [TraceMeanField_ELBO, Trace_ELBO])


def build():
    torch.manual_seed(0)
    shape = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 4, "depth": 2, "heads": 2}
    model = Classifier(ViT(**shape, mlp_dim=4, attention=KEPSVGPAttention.partial(rank=2)), num_data=6)
    return model, guides.for_model(model), torch.randn(6, 1, 4, 4), torch.arange(6) % 3


def parameters_in(trace):
    return {name for name, node in trace.nodes.items() if node["type"] == "param"}


def names(*modules):
    return {name for module in modules for name, _ in module.named_parameters()}


@ELBOS
def test_an_elbo_is_silent_and_a_trace_of_one_is_not(kind):
    model, guide, x, y = build()
    elbo = kind()
    silent = elbo(model, guide)(x, y)
    assert [parameters_in(trace) for trace in elbo.traces] == [set(), set()]
    torch.manual_seed(1)
    alone = elbo(model, guide)(x, y)
    torch.manual_seed(1)
    heard = poutine.trace(elbo(model, guide)).get_trace(x, y)
    assert torch.equal(heard.nodes["_RETURN"]["value"], alone)
    assert parameters_in(heard) == names(model, guide)
    assert silent.isfinite()
    assert parameters_in(poutine.trace(model).get_trace(x, y)) == names(model)


def test_a_handler_that_listens_hears_every_parameter_in_an_elbo():
    class Listening(Messenger):
        def _pyro_post_param(self, msg):
            heard.add(msg["name"])

    heard = set()
    model, guide, x, y = build()
    with Listening():
        TraceMeanField_ELBO()(model, guide)(x, y)
    assert heard == names(model, guide)
