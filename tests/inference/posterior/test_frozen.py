"""Fixed parameters, and scales of sites that leave the log joint the density of a whole data set."""

import pyro.distributions as dist
import pytest
import torch
from torch import nn

from probattn import CGPAttention, KEPSVGPAttention
from probattn.inference.posterior.frozen import check_unit_scales, frozen
from probattn.models import Supervised
from probattn.weights import kl_weight

F64, NOISE = torch.float64, 0.8


def test_frozen_switches_dropout_and_gradients_off_and_on_again_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5).eval(), nn.Dropout(0.5))
    model[0].bias.requires_grad_(False)
    seen = []

    def fails():
        seen.append(any(module.training for module in model.modules()))
        seen.append(any(parameter.requires_grad for parameter in model.parameters()))
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), frozen(model):
        fails()
    assert seen == [False, False]
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False]


def test_a_batch_of_a_larger_data_set_and_a_weighted_kl_are_refused():
    model = Supervised(KEPSVGPAttention(2, 1, rank=2), lambda f: dist.Normal(f, NOISE).to_event(2), num_data=3).double()
    x, y = torch.randn(3, 4, 2, dtype=F64), torch.randn(3, 4, 2, dtype=F64)
    check_unit_scales(model, (x, y))
    with pytest.raises(ValueError, match=r"site y has scale 1.5, not 1: pass the whole data set"):
        check_unit_scales(model, (x[:2], y[:2]))
    with kl_weight(0.5), pytest.raises(ValueError, match=r"site network.u has scale 0.5"):
        check_unit_scales(model, (x, y))


def test_a_weighted_regulariser_is_refused_only_where_it_draws():
    layer = CGPAttention(2, 1, alpha=1.0, regulariser_norm="example")
    model = Supervised(layer, lambda f: dist.Normal(f, NOISE).to_event(2), num_data=2).double()
    batch = (torch.randn(2, 3, 2, dtype=F64), torch.randn(2, 3, 2, dtype=F64))
    check_unit_scales(model, batch)
    layer.regulariser_norm = "column"
    with pytest.raises(ValueError, match="network.z_o has scale 0.5"):
        check_unit_scales(model, batch)
    layer.collapsed = True
    check_unit_scales(model, batch)
