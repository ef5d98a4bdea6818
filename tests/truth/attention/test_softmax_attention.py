"""Softmax attention against torch.nn.MultiheadAttention, its matrix, and its dropout."""

import pytest
import torch
from sampling import randn
from torch.testing import assert_close

from probattn import SoftmaxAttention

MASK = torch.tensor([[True] * 6, [True, False, True, True, False, False]])


@pytest.fixture
def layer():
    return SoftmaxAttention(12, 3, bias=True).double()


def test_layer_is_torchs_multihead_attention(layer):
    reference = torch.nn.MultiheadAttention(12, 3, batch_first=True).double()
    names = {"query_key_value.weight": "in_proj_weight", "query_key_value.bias": "in_proj_bias"}
    names |= {"out.weight": "out_proj.weight", "out.bias": "out_proj.bias"}
    reference.load_state_dict({names[name]: value for name, value in layer.state_dict().items()})
    x = randn(2, 6, 12)
    expected, _ = reference(x, x, x, key_padding_mask=~MASK, need_weights=False)
    assert_close(layer(x, MASK)[MASK], expected[MASK])
    assert_close(layer(x), reference(x, x, x, need_weights=False)[0])


def test_attention_matrix_is_what_weights_the_values(layer):
    x = randn(3, 2, 6, 12)
    for given in (None, MASK):
        matrix = layer.attention_matrix(x, given)
        assert matrix.shape == (3, 2, 3, 6, 6)
        assert_close(matrix.sum(-1), torch.ones(3, 2, 3, 6, dtype=x.dtype))
        value = layer.split_heads(layer.query_key_value(layer.checked(x, given)), 3)[2]
        assert_close(layer.out(layer.join_heads(matrix @ value)), layer(x, given))
    assert (matrix[:, 1, :, :, ~MASK[1]] == 0).all()


def test_dropout_acts_on_probabilities_in_training_only(layer):
    """Mean of the layer without, and variance p/(1−p) Σ_j a_j² v_j²."""
    dropping = SoftmaxAttention(12, 3, bias=True, dropout=0.3).double()
    dropping.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for plain in (layer, dropping):
            plain.out.weight.copy_(torch.eye(12))
            plain.out.bias.zero_()
    x, number = randn(1, 6, 12), 5_000
    for given in (None, MASK[1:]):
        assert torch.equal(dropping.eval()(x, given), layer(x, given))
        with torch.no_grad():
            draws = dropping.train()(x.expand(number, 1, 6, 12), given)
            value = layer.split_heads(layer.query_key_value(layer.checked(x, given)), 3)[2]
            variance = (
                0.3
                / 0.7
                * layer.join_heads(dropping.attention_matrix(x, given).square() @ value.square())
            )
        assert ((draws.mean(0) - layer(x, given)).abs() < 5 * (variance / number).sqrt()).all()
        assert_close(draws.var(0), variance, rtol=0.15, atol=0)
    assert torch.equal(layer.train()(x), layer.eval()(x))
