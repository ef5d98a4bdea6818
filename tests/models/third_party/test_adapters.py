"""Calls of other libraries, as their layers are called by hand."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from probattn import SoftmaxAttention
from probattn.draws import draws_in_batch
from probattn.models.third_party.adapters import Adapter, ClassAttentionAdapter, MultiheadAttentionAdapter

REAL = torch.tensor([[True, True, False], [True, True, True]])


@pytest.fixture
def layer():
    return SoftmaxAttention(4, 2)


@pytest.fixture
def x():
    return torch.randn(2, 3, 4)


def multihead(layer, **options):
    return MultiheadAttentionAdapter(layer, nn.MultiheadAttention(4, 2, **({"batch_first": True} | options)))


def timm(layer, dropout=0.0):
    return Adapter(layer, SimpleNamespace(proj_drop=nn.Dropout(dropout)))


def test_multihead_takes_padding_as_bool_and_as_canonical_float(layer, x):
    added = torch.zeros(2, 3).masked_fill(~REAL, -torch.inf)
    for padding in (~REAL, added):
        output = multihead(layer)(x, x, x, key_padding_mask=padding, need_weights=False)
        assert torch.equal(output, layer(x, REAL))


def test_multihead_takes_its_batch_second(layer, x):
    second = x.transpose(0, 1)
    output = multihead(layer, batch_first=False)(second, second, second, key_padding_mask=~REAL)
    assert_close(output, layer(x, REAL).transpose(0, 1))


def test_folded_draws_are_unfolded_draw_by_draw(layer, x):
    seen = []
    layer.register_forward_pre_hook(lambda _, args: seen.append(args))
    with draws_in_batch(3):
        output = Adapter(layer, nn.Identity())(torch.cat([x, 2 * x, 3 * x]), torch.cat([REAL] * 3)[:, None, None])
    ((inside, mask),) = seen
    assert torch.equal(inside, torch.stack([x, 2 * x, 3 * x]))
    assert torch.equal(mask, REAL)
    assert_close(output, torch.cat([layer(s * x, REAL) for s in (1, 2, 3)]))


def test_multihead_takes_equal_tensors_that_are_not_one(layer, x):
    norm = nn.LayerNorm(4)
    assert torch.equal(multihead(layer)(norm(x), norm(x), norm(x)), layer(norm(x)))


@pytest.mark.parametrize("outputs", [None, 1, 2, 3])
def test_the_output_has_the_form_of_the_old_layers(layer, x, outputs):
    output = Adapter(layer, nn.Identity(), num_outputs=outputs)(x)
    attended, *others = output if outputs else (output,)
    assert torch.equal(attended, layer(x))
    assert others == [None] * ((outputs or 1) - 1)


@pytest.mark.parametrize(
    ("arguments", "feature"),
    [
        ({"key": torch.zeros(2, 3, 4)}, "cross-attention"),
        ({"value": torch.zeros(2, 3, 4)}, "cross-attention"),
        ({"attn_mask": torch.zeros(3, 3)}, "attn_mask"),
        ({"is_causal": True}, "is_causal"),
        ({"key_padding_mask": torch.full((2, 3), 0.5)}, "adds numbers"),
    ],
)
def test_multihead_refuses_by_name(layer, x, arguments, feature):
    with pytest.raises(ValueError, match=feature):
        multihead(layer)(**({"query": x, "key": x, "value": x} | arguments))


def test_unbatched_and_nested_tokens_are_refused(layer, x):
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        multihead(layer)(first := x[0], first, first)
    nested = torch.nested.nested_tensor(list(x), layout=torch.jagged)
    with pytest.raises((ValueError, RuntimeError)):
        multihead(layer)(nested, nested, nested)


def test_timms_output_passes_through_its_dropout_and_set_options_are_refused(layer, x):
    adapter = timm(layer, dropout=0.999)
    assert (adapter(x) == 0).double().mean() > 0.8
    adapter.eval()
    assert torch.equal(adapter(x, REAL[:, None, None], is_causal=False, rope=None), layer(x, REAL))
    for option in ({"is_causal": True}, {"rope": x}):
        with pytest.raises(ValueError, match=next(iter(option))):
            adapter(x, **option)


def test_class_attention_returns_the_first_tokens_output(layer, x):
    assert torch.equal(ClassAttentionAdapter(layer, nn.Identity())(x), layer(x)[:, :1])


def test_hugging_face_takes_padding_and_refuses_whatever_else_is_set(layer, x):
    adapter, mask = Adapter(layer, nn.Identity()), REAL[:, None, None]
    outputs = (
        adapter(x, mask, None, None, False),
        adapter(x, attention_mask=mask, encoder_hidden_states=None, cache=None, cache_position=torch.arange(3)),
        adapter(hidden_states=x, attention_mask=mask.float().log(), output_attentions=True),
    )
    for output in outputs:
        assert_close(output, layer(x, REAL))
    for name, option in {"encoder_hidden_states": x, "is_causal": True, "cu_seq_lens_q": x, "scaling": 0.0}.items():
        with pytest.raises(ValueError, match=name):
            adapter(x, **{name: option})
    for argument in (torch.ones(2), True):
        with pytest.raises(ValueError, match="argument 3"):
            adapter(x, mask, argument)
