"""Modules skip `pyro.param` effects in our ELBOs unless an outer handler records them."""

from contextlib import nullcontext

import pyro.poutine as poutine
import pytest
import torch
from pyro.poutine.messenger import Messenger

from probattn import KEPSVGPAttention, guides
from probattn.inference import Trace_ELBO, TraceMeanField_ELBO
from probattn.models import Classifier, ViT

ELBOS = pytest.mark.parametrize("kind", [TraceMeanField_ELBO, Trace_ELBO])


class Listening(Messenger):
    def __init__(self):
        super().__init__()
        self.names = set()

    def _pyro_post_param(self, msg):
        self.names.add(msg["name"].replace("$$$", "."))


def build():
    torch.manual_seed(0)
    shape = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 4, "depth": 2, "heads": 2}
    model = Classifier(ViT(**shape, mlp_dim=4, attention=KEPSVGPAttention.partial(rank=2)), num_data=6)
    return model, guides.for_model(model), torch.randn(6, 1, 4, 4), torch.arange(6) % 3


def parameters_in(trace):
    return {name.replace("$$$", ".") for name, node in trace.nodes.items() if node["type"] == "param"}


def names(*modules):
    return {name.removesuffix("_unconstrained") for module in modules for name, _ in module.named_parameters()}


@ELBOS
def test_an_elbo_skips_param_effects_unless_an_outer_handler_records_them(kind):
    model, guide, x, y = build()
    elbo = kind()
    losses, heard = [], Listening()
    for listening in (False, True):
        torch.manual_seed(1)
        with heard if listening else nullcontext():
            losses.append(elbo(model, guide)(x, y))
        assert [bool(parameters_in(trace)) for trace in elbo.traces] == [listening, listening]
        assert heard.names == (names(model, guide) if listening else set())
    assert torch.equal(*losses)


def test_a_model_outside_an_elbo_has_param_sites():
    model, _, x, y = build()
    assert parameters_in(poutine.trace(model).get_trace(x, y)) == names(model)
