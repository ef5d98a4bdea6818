"""KEP-SVGP attention around softmax attention: equality without the process, gradients, dropout."""

import pyro.poutine as poutine
import pytest
import torch
from kep_svgp_layers import layer_of
from sampling import output, randn, run
from torch import nn
from torch.testing import assert_close

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.models import replace_attention


def make(**options):
    return layer_of(mean="softmax", **options)


def softmax_twin(layer):
    """Softmax attention with the layer's maps."""
    twin = SoftmaxAttention(layer.dim, layer.heads, bias=layer.query_key.bias is not None).double()
    with torch.no_grad():
        twin.query_key_value.weight.copy_(
            torch.cat([layer.query_key.weight, layer.mean.value.weight])
        )
        if twin.query_key_value.bias is not None:
            twin.query_key_value.bias.copy_(
                torch.cat([layer.query_key.bias, layer.mean.value.bias])
            )
    twin.out = layer.mean.out
    return twin


MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False, True, False, True, False, True]])


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("bias", [False, True])
def test_output_is_softmax_attention_plus_the_amplitude_times_the_process(bias, mask):
    layer, x, u = make(bias=bias, amplitude=0.3), randn(3, 6, 12), randn(3, 2, 2, seed=1)
    assert layer.out.bias is None
    e, r, _, _ = layer.scores(x, mask)
    f = (
        torch.einsum("bhns,hds->bnhd", e + r, u / layer.scale.unsqueeze(-2)).flatten(-2)
        @ layer.out.weight.T
    )
    assert_close(output(layer, x, mask, u=u), softmax_twin(layer)(x, mask) + 0.3 * f)
    assert_close(output(layer, x, mask, u=0 * u), softmax_twin(layer)(x, mask))


@pytest.mark.parametrize("projection", ["data", "plain"])
def test_the_penalty_reaches_neither_attention_nor_what_is_below_it(projection):
    """With a mean of 0 it does: there the kernel is the penalty's to form."""

    reached, below, factors = {}, {}, {}
    for mean in ("softmax", "zero"):
        layer, x = layer_of(mean=mean, projection=projection), randn(2, 6, 12).requires_grad_()
        factors[mean] = run(layer, x).nodes["ksvd"]["fn"].log_factor
        factors[mean].sum().backward()
        reached[mean] = {
            name for name, p in layer.named_parameters() if p.grad is not None and p.grad.any()
        }
        below[mean] = x.grad is not None and bool(x.grad.any())
    weights = (
        {"projection.weights"} if projection == "data" else {"projection.w_e", "projection.w_r"}
    )
    assert reached == {
        "softmax": weights | {"log_scale"},
        "zero": weights | {"log_scale", "query_key.weight"},
    }
    assert below == {"softmax": False, "zero": True}
    assert_close(factors["softmax"], factors["zero"])


def test_dropout_acts_in_training_on_the_softmax_alone():
    layer, x, u = make(dropout=0.5), randn(2, 6, 12), randn(3, 2, 2, seed=1)
    assert (output(layer, x, u=u) - output(layer, x, u=u)).abs().max() > 1e-3
    layer.eval()
    assert torch.equal(output(layer, x, u=u), output(layer, x, u=u))


@pytest.mark.parametrize("bias", [False, True])
def test_a_converted_network_computes_what_it_did_before_where_u_is_zero(bias):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1, bias=bias)
    network = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).double()
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    network.eval()
    x = randn(4, 5, 8)
    expected = network(x)
    converted = replace_attention(
        network, attention=KEPSVGPAttention.partial(rank=2, mean="softmax"), layers="all"
    )
    names = [name for name in poutine.trace(converted).get_trace(x).nodes if name.endswith(".u")]
    assert len(names) == 3
    zeros = {name: torch.zeros(2, 2, 2).double() for name in names}
    assert_close(poutine.condition(converted, data=zeros)(x), expected)
