"""Weights that new layers take over from old ones, row by row."""

import functools

import pytest
import torch
from torch import nn

from probattn import (
    AnchoredAttention,
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
)
from probattn.models.third_party.attention_kinds import read_attention
from probattn.models.third_party.replace import build_layer

F64 = torch.float64


def old(bias=True, dropout=0.0):
    module = nn.MultiheadAttention(8, 2, bias=bias, dropout=dropout, dtype=F64)
    if bias:
        nn.init.normal_(module.in_proj_bias)
        nn.init.normal_(module.out_proj.bias)
    return module, read_attention(module)


@pytest.mark.parametrize(
    ("factory", "joint", "rows", "scale"),
    [
        (SoftmaxAttention, "query_key_value", "qkv", 1.0),
        (KernelAttention, "query_key_value", "qkv", (1.5 / 4) ** 0.5),
        (KernelAttention.partial(symmetric=True), "query_value", "qv", (1.5 / 4) ** 0.5),
        (KernelAttention.partial(kernel="ard"), "query_key_value", "qkv", 1.0),
        (KEPSVGPAttention.partial(rank=4), "query_key", "qk", 1.0),
        (SGPAttention, "query_value", "qv", 1.0),
        (SGPAttention.partial(kernel="rbf"), "query_value", "qv", (1.5 / 4) ** 0.5),
        (CGPAttention, "query_key_value", "qkv", (1.5 / 4) ** 0.5),
        (SparseCGPAttention, "query_key_value", "qkv", (1.5 / 4) ** 0.5),
        (AnchoredAttention, "query_key_value", "qkv", (1.5 / 4) ** 0.5),
    ],
)
def test_weights_and_biases_have_their_rows_and_gain(factory, joint, rows, scale):
    module, read = old()
    layer = build_layer(factory, read)
    linear = getattr(layer, joint)
    factors = {"q": scale, "k": scale, "v": 1.0}
    for number, part in enumerate(rows):
        source = slice(8 * "qkv".index(part), 8 * "qkv".index(part) + 8)
        target = slice(8 * number, 8 * number + 8)
        torch.testing.assert_close(linear.weight[target], factors[part] * module.in_proj_weight[source])
        torch.testing.assert_close(linear.bias[target], factors[part] * module.in_proj_bias[source])
    if "v" in rows:
        assert torch.equal(layer.out.weight, module.out_proj.weight)
        assert torch.equal(layer.out.bias, module.out_proj.bias)
    else:
        assert not torch.equal(layer.out.weight, module.out_proj.weight)
    assert {parameter.dtype for parameter in layer.parameters()} == {F64}


def test_softmax_attention_as_a_mean_is_the_old_layer():
    module, read = old(dropout=0.25)
    layer = build_layer(KEPSVGPAttention.partial(rank=4, mean="softmax"), read)
    assert layer.dropout == 0.25
    torch.testing.assert_close(layer.query_key.weight, module.in_proj_weight[:16])
    torch.testing.assert_close(layer.query_key.bias, module.in_proj_bias[:16])
    torch.testing.assert_close(layer.mean.value.weight, module.in_proj_weight[16:])
    torch.testing.assert_close(layer.mean.value.bias, module.in_proj_bias[16:])
    assert torch.equal(layer.mean.out.weight, module.out_proj.weight)
    assert torch.equal(layer.mean.out.bias, module.out_proj.bias)
    layer = build_layer(KEPSVGPAttention.partial(rank=4, mean="softmax"), old(bias=False)[1])
    assert layer.mean.value.bias is None
    assert not layer.mean.out.bias.any()


def test_copies_share_no_memory():
    module, read = old()
    layer = build_layer(SoftmaxAttention, read)
    layer.query_key_value.weight.data.zero_()
    assert module.in_proj_weight.any()


def test_a_missing_bias_is_none_or_zero():
    _, read = old(bias=False)
    layer = build_layer(SoftmaxAttention, read)
    assert layer.query_key_value.bias is None
    assert not layer.out.bias.any()
    layer = build_layer(SoftmaxAttention.partial(bias=True), read)
    assert not layer.query_key_value.bias.any()


def test_a_factorys_own_default_gives_way_to_an_old_layer_without_bias_or_dropout():
    def biased(dim, heads, *, bias=True, dropout=0.5):
        return SoftmaxAttention(dim, heads, bias=bias, dropout=dropout)

    layer = build_layer(biased, old(bias=False)[1])
    assert layer.query_key_value.bias is None
    assert layer.dropout == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_for_half_precision_weights_has_them_itself(dtype):
    read = read_attention(nn.MultiheadAttention(8, 2, dtype=dtype))
    for factory in (SoftmaxAttention, KEPSVGPAttention.partial(rank=2), CGPAttention, KernelAttention, SGPAttention):
        layer = build_layer(factory, read)
        assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
        output = layer(torch.randn(2, 3, 8, dtype=dtype))
        assert output.dtype == dtype
        assert output.isfinite().all()


def test_bias_and_dropout_are_the_old_layers_unless_the_factory_says():
    _, read = old(dropout=0.25)
    assert build_layer(SoftmaxAttention, read).dropout == 0.25
    assert build_layer(SoftmaxAttention.partial(dropout=0.0), read).dropout == 0.0
    assert build_layer(SoftmaxAttention.partial(bias=False), read).query_key_value.bias is None
    nested = functools.partial(SoftmaxAttention.partial(bias=False), dropout=0.5)
    assert build_layer(nested, read).dropout == 0.5
    assert build_layer(KEPSVGPAttention.partial(rank=2), read).query_key.bias is not None
    plain = build_layer(lambda dim, heads: SoftmaxAttention(dim, heads), read)
    assert plain.query_key_value.bias is None
    assert plain.dropout == 0.0
