"""Softmax attention against loops and torch.nn.MultiheadAttention, and its settings."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from torch.testing import assert_close

from probattn import SoftmaxAttention
from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.settings import Settings, SettingsError


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return SoftmaxAttention(12, 3, bias=True).double()


def loops(layer, x, mask=None):
    output = []
    for b in range(x.shape[0]):
        query, key, value = layer.query_key_value(x[b]).chunk(3, dim=-1)
        joined = []
        for h in range(layer.heads):
            part = slice(h * layer.head_dim, (h + 1) * layer.head_dim)
            score = query[:, part] @ key[:, part].T / layer.head_dim**0.5
            if mask is not None:
                score[:, ~mask[b]] = -torch.inf
            joined.append(score.softmax(-1) @ value[:, part])
        output.append(layer.out(torch.cat(joined, dim=-1)))
    return torch.stack(output)


def test_layer_is_attention_in_loops(layer):
    x = randn(2, 6, 12)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, False]])
    assert_close(layer(x), loops(layer, x))
    assert_close(layer(x, mask)[mask], loops(layer, x, mask)[mask])


def test_layer_is_torchs_multihead_attention(layer):
    reference = torch.nn.MultiheadAttention(12, 3, batch_first=True).double()
    reference.load_state_dict(
        {
            "in_proj_weight": layer.query_key_value.weight,
            "in_proj_bias": layer.query_key_value.bias,
            "out_proj.weight": layer.out.weight,
            "out_proj.bias": layer.out.bias,
        }
    )
    x = randn(2, 6, 12)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    expected, _ = reference(x, x, x, key_padding_mask=~mask, need_weights=False)
    assert_close(layer(x, mask)[mask], expected[mask])


def test_padding_changes_no_real_token(layer):
    x, mask = randn(2, 6, 12), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    other = x.clone()
    other[1, 4:] *= -30
    assert_close(layer(other, mask)[mask], layer(x, mask)[mask])
    other[1, 4:] = torch.nan
    assert_close(layer(other, mask)[mask], layer(x, mask)[mask])


def test_draws_pass_through(layer):
    x, mask = randn(3, 2, 6, 12), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    together = layer(x, mask)
    for s in range(3):
        assert_close(together[s], layer(x[s], mask))


def test_non_contiguous_one_head_and_batch_of_one():
    layer = SoftmaxAttention(12, 1).double()
    x = randn(12, 6, 1).permute(2, 1, 0)
    assert_close(layer(x), loops(layer, x))


def test_gradients(layer):
    x = randn(1, 3, 12).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    assert torch.autograd.gradcheck(lambda x: (layer(x), layer(x, mask)), (x,))


def test_attention_matrix_is_what_weights_the_values(layer):
    x, mask = randn(3, 2, 6, 12), torch.tensor([[True] * 6, [True, False, True, True, False, False]])
    for given in (None, mask):
        matrix = layer.attention_matrix(x, given)
        assert matrix.shape == (3, 2, 3, 6, 6)
        assert_close(matrix.sum(-1), torch.ones(3, 2, 3, 6, dtype=x.dtype))
        value = layer.split_heads(layer.query_key_value(layer.checked(x, given)), 3)[2]
        assert_close(layer.out(layer.join_heads(matrix @ value)), layer(x, given))
    assert (matrix[:, 1, :, :, ~mask[1]] == 0).all()
    with pytest.raises(ValueError, match="project x first"):
        layer.attention_matrix(randn(2, 6, 10))


def test_it_has_no_latent_sites(layer):
    assert layer.sites() == {}


def test_bad_input_is_named(layer):
    with pytest.raises(ValueError, match="project x first"):
        layer(randn(2, 6, 10))
    with pytest.raises(ValueError, match=r"rows \[0\]"):
        layer(randn(1, 2, 12), torch.zeros(1, 2).bool())


def test_dropout_acts_on_probabilities_in_training_only(layer):
    """Mean of the layer without, and variance p/(1−p) Σ_j a_j² v_j²."""
    dropping = SoftmaxAttention(12, 3, bias=True, dropout=0.3).double()
    dropping.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for each in (layer, dropping):
            each.out.weight.copy_(torch.eye(12))
            each.out.bias.zero_()
    x, mask = randn(1, 6, 12), torch.tensor([[True] * 4 + [False] * 2])
    number = 20_000
    for given in (None, mask):
        assert torch.equal(dropping.eval()(x, given), layer(x, given))
        with torch.no_grad():
            draws = dropping.train()(x.expand(number, 1, 6, 12), given)
            value = layer.split_heads(layer.query_key_value(layer.checked(x, given)), 3)[2]
            each = layer.attention_matrix(x, given).square() @ value.square()
            variance = 0.3 / 0.7 * layer.join_heads(each)
        deviation = draws.mean(0) - layer(x, given)
        assert (deviation.abs() < 5 * (variance / number).sqrt()).all()
        assert_close(draws.var(0), variance, rtol=0.1, atol=0)
    assert torch.equal(layer.train()(x), layer.eval()(x))


def test_attention_matrix_is_without_dropout(layer):
    dropping = SoftmaxAttention(12, 3, bias=True, dropout=0.3).double().train()
    dropping.load_state_dict(layer.state_dict())
    x = randn(2, 6, 12)
    assert torch.equal(dropping.attention_matrix(x), layer.attention_matrix(x))


def test_a_checkpoint_does_not_depend_on_dropout():
    assert SoftmaxAttention(12, 3, dropout=0.3).signature() == SoftmaxAttention(12, 3).signature()


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_a_dropout_rate_out_of_bounds_is_refused(rate):
    with pytest.raises(ValueError, match=r"a dropout rate lies in \[0, 1\)"):
        SoftmaxAttention(12, 3, dropout=rate)


def test_dropout_is_a_setting_that_reaches_the_layer():
    settings = PRESETS["digits/softmax"]
    assert settings.layer.factory(16)(8, 2).dropout == SoftmaxAttention(8, 2).dropout == 0
    settings = settings.with_changes(["layer.dropout=0.2"])
    assert settings.layer.factory(16)(8, 2).dropout == 0.2
    assert Settings.from_dict(json.loads(json.dumps(asdict(settings)))) == settings
    with pytest.raises(SettingsError, match="layer.dropout: input should be a valid number.*, got 'much'"):
        settings.with_changes(["layer.dropout=much"])
