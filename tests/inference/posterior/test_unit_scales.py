"""Scales of sites that leave the log joint the density of a whole data set."""

import pyro.distributions as dist
import pytest
import torch

from probattn import CGPAttention, KEPSVGPAttention
from probattn.inference.posterior.frozen import check_unit_scales
from probattn.models import Supervised
from probattn.weights import kl_weight

F64, NOISE = torch.float64, 0.8


def test_a_batch_of_a_larger_data_set_and_a_weighted_kl_are_refused():
    model = Supervised(KEPSVGPAttention(2, 1, rank=2), lambda f: dist.Normal(f, NOISE).to_event(2), num_data=3).double()
    x, y = torch.randn(3, 4, 2, dtype=F64), torch.randn(3, 4, 2, dtype=F64)
    check_unit_scales(model, (x, y))
    with pytest.raises(ValueError, match=r"site y has scale 1.5 .* whole data set"):
        check_unit_scales(model, (x[:2], y[:2]))
    with kl_weight(0.5), pytest.raises(ValueError, match=r"site network.u has scale 0.5"):
        check_unit_scales(model, (x, y))


def test_a_weighted_regulariser_is_refused_only_where_it_draws():
    layer = CGPAttention(2, 1, alpha=1.0, regulariser_norm="example")
    model = Supervised(layer, lambda f: dist.Normal(f, NOISE).to_event(2), num_data=2).double()
    batch = (torch.randn(2, 3, 2, dtype=F64), torch.randn(2, 3, 2, dtype=F64))
    check_unit_scales(model, batch)
    layer.regulariser_norm = "column"
    with pytest.raises(ValueError, match=r"network.z_o has scale 0.5 .* collapsed=True"):
        check_unit_scales(model, batch)
    layer.collapsed = True
    check_unit_scales(model, batch)
