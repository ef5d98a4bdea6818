"""KEP-SVGP attention around softmax attention: equality without the process, gradients, dropout."""

import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from probattn import KEPSVGPAttention, SoftmaxAttention, local_sites
from probattn.models import replace_attention


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(dim=12, heads=3, **options):
    torch.manual_seed(0)
    return KEPSVGPAttention(dim, heads, **{"rank": 2, "mean": "softmax", **options}).double()


def with_u(layer, u, x, mask=None):
    with local_sites(batch=x.shape[-3], num_data=x.shape[-3]):
        return poutine.condition(layer, data={"u": u})(x, mask)


def softmax_twin(layer):
    """Softmax attention with the layer's maps."""
    twin = SoftmaxAttention(layer.dim, layer.heads, bias=layer.query_key.bias is not None).double()
    with torch.no_grad():
        twin.query_key_value.weight.copy_(torch.cat([layer.query_key.weight, layer.mean.value.weight]))
        if twin.query_key_value.bias is not None:
            twin.query_key_value.bias.copy_(torch.cat([layer.query_key.bias, layer.mean.value.bias]))
    twin.out = layer.mean.out
    return twin


MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False, True, False, True, False, True]])


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("bias", [False, True])
def test_output_is_softmax_attention_plus_the_amplitude_times_the_process(bias, mask):
    layer, x, u = make(bias=bias, amplitude=0.3), randn(3, 6, 12), randn(3, 2, 2, seed=1)
    assert layer.out.bias is None
    e, r, _, _ = layer.scores(x, mask)
    f = torch.einsum("bhns,hds->bnhd", e + r, u / layer.scale.unsqueeze(-2)).flatten(-2) @ layer.out.weight.T
    assert_close(with_u(layer, u, x, mask), softmax_twin(layer)(x, mask) + 0.3 * f)
    assert_close(with_u(layer, 0 * u, x, mask), softmax_twin(layer)(x, mask))


@pytest.mark.parametrize("projection", ["data", "plain"])
def test_the_penalty_reaches_neither_attention_nor_what_is_below_it(projection):
    """With a mean of 0 it does: there the kernel is the penalty's to form."""

    def gradients(mean):
        layer, x = make(mean=mean, projection=projection), randn(2, 6, 12).requires_grad_()
        with local_sites(batch=2, num_data=2):
            trace = poutine.trace(layer).get_trace(x)
        trace.nodes["ksvd"]["fn"].log_factor.sum().backward()
        reached = {name for name, p in layer.named_parameters() if p.grad is not None and p.grad.any()}
        return reached, x.grad is not None and bool(x.grad.any()), trace.nodes["ksvd"]["fn"].log_factor

    weights = {"projection.weights"} if projection == "data" else {"projection.w_e", "projection.w_r"}
    reached, below, value = gradients("softmax")
    assert reached == weights | {"log_scale"}
    assert not below
    reached, below, expected = gradients("zero")
    assert reached == weights | {"log_scale", "query_key.weight"}
    assert below
    assert_close(value, expected)


def test_dropout_acts_in_training_on_the_softmax_alone():
    layer, x, u = make(dropout=0.5), randn(2, 6, 12), randn(3, 2, 2, seed=1)
    first, second = with_u(layer, u, x), with_u(layer, u, x)
    assert (first - second).abs().max() > 1e-3
    layer.eval()
    assert torch.equal(with_u(layer, u, x), with_u(layer, u, x))


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
    converted = replace_attention(network, attention=KEPSVGPAttention.partial(rank=2, mean="softmax"), layers="all")
    names = [name for name in poutine.trace(converted).get_trace(x).nodes if name.endswith(".u")]
    assert len(names) == 3
    with torch.no_grad():
        output = poutine.condition(converted, data={name: torch.zeros(2, 2, 2).double() for name in names})(x)
    assert_close(output, expected)
