"""Calls of other libraries, as their layers are called by hand."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from probattn import SoftmaxAttention
from probattn.draws import draws_in_batch
from probattn.models.third_party.adapters import (
    ClassAttentionAdapter,
    FusedQKVAdapter,
    MultiheadAttentionAdapter,
    SeparateQKVAdapter,
)

REAL = torch.tensor([[True, True, False], [True, True, True]])


@pytest.fixture
def layer():
    return SoftmaxAttention(4, 2)


@pytest.fixture
def x():
    return torch.randn(2, 3, 4)


def test_multihead_takes_padding_as_bool_and_as_canonical_float(layer, x):
    adapter, expected = MultiheadAttentionAdapter(layer, num_outputs=2, batch_first=True), layer(x, REAL)
    added = torch.zeros(2, 3).masked_fill(~REAL, -torch.inf)
    for padding in (~REAL, added):
        output, weights = adapter(x, x, x, key_padding_mask=padding, need_weights=False)
        assert weights is None
        assert torch.equal(output, expected)


def test_multihead_takes_its_batch_second(layer, x):
    second = x.transpose(0, 1)
    output, _ = MultiheadAttentionAdapter(layer, num_outputs=2, batch_first=False)(
        second, second, second, key_padding_mask=~REAL
    )
    assert_close(output, layer(x, REAL).transpose(0, 1))


def test_folded_draws_are_unfolded_draw_by_draw(layer, x):
    seen = []
    layer.register_forward_pre_hook(lambda _, args: seen.append(args))
    with draws_in_batch(3):
        output = SeparateQKVAdapter(layer, num_outputs=2)(
            torch.cat([x, 2 * x, 3 * x]), torch.cat([REAL] * 3)[:, None, None]
        )[0]
    ((inside, mask),) = seen
    assert torch.equal(inside, torch.stack([x, 2 * x, 3 * x]))
    assert torch.equal(mask, REAL)
    assert_close(output, torch.cat([layer(s * x, REAL) for s in (1, 2, 3)]))


def test_multihead_takes_equal_tensors_that_are_not_one(layer, x):
    norm, adapter = nn.LayerNorm(4), MultiheadAttentionAdapter(layer, num_outputs=None, batch_first=True)
    assert torch.equal(adapter(norm(x), norm(x), norm(x)), layer(norm(x)))


@pytest.mark.parametrize("outputs", [None, 1, 2, 3])
@pytest.mark.parametrize("kind", ["multihead", "joint", "separate"])
def test_the_output_has_the_form_of_the_old_layers(layer, x, kind, outputs):
    output = {
        "multihead": lambda: MultiheadAttentionAdapter(layer, num_outputs=outputs, batch_first=True)(x, x, x),
        "joint": lambda: FusedQKVAdapter(layer, num_outputs=outputs, proj_drop=nn.Identity())(x),
        "separate": lambda: SeparateQKVAdapter(layer, num_outputs=outputs)(x),
    }[kind]()
    if outputs is not None:
        assert isinstance(output, tuple)
        output, *rest = output
        assert rest == [None] * (outputs - 1)
    assert torch.equal(output, layer(x))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": torch.zeros(2, 3, 4)}, "cross-attention"),
        ({"value": torch.zeros(2, 3, 4)}, "cross-attention"),
        ({"attn_mask": torch.zeros(3, 3)}, "attn_mask or is_causal"),
        ({"is_causal": True}, "attn_mask or is_causal"),
        ({"key_padding_mask": torch.full((2, 3), 0.5)}, "adds numbers"),
    ],
)
def test_multihead_refuses_by_name(layer, x, arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiheadAttentionAdapter(layer, num_outputs=2, batch_first=True)(
            **({"query": x, "key": x, "value": x} | arguments)
        )


def test_unbatched_and_nested_tokens_are_refused(layer, x):
    adapter = MultiheadAttentionAdapter(layer, num_outputs=2, batch_first=True)
    with pytest.raises(ValueError, match=r"got shape \(3, 4\)"):
        adapter(first := x[0], first, first)
    nested = torch.nested.nested_tensor(list(x), layout=torch.jagged)
    with pytest.raises(ValueError, match="got a nested tensor"):
        adapter(nested, nested, nested)


def test_joint_passes_its_output_through_what_came_after(layer, x):
    adapter = FusedQKVAdapter(layer, num_outputs=None, proj_drop=nn.Dropout(0.999))
    assert not adapter(x).any() or (adapter(x) == 0).double().mean() > 0.8
    adapter.eval()
    assert torch.equal(adapter(x, REAL[:, None, None], is_causal=False, rope=None), layer(x, REAL))
    for option in ({"is_causal": True}, {"rope": x}):
        with pytest.raises(ValueError, match=f"got {next(iter(option))}: layers of this library do not support it"):
            adapter(x, **option)


def test_class_attention_returns_the_first_tokens_output(layer, x):
    adapter = ClassAttentionAdapter(layer, num_outputs=None, proj_drop=nn.Identity())
    assert torch.equal(adapter(x), layer(x)[:, :1])
    assert not ClassAttentionAdapter(layer, num_outputs=None, proj_drop=nn.Dropout(1.0))(x).any()


def test_separate_takes_the_calls_of_transformers_4_and_5(layer, x):
    adapter, mask = SeparateQKVAdapter(layer, num_outputs=2), REAL[:, None, None]
    calls = [
        adapter(x, mask, None, None, None, None, False),
        adapter(
            x, attention_mask=mask, encoder_hidden_states=None, past_key_values=None, cache_position=torch.arange(3)
        ),
        adapter(hidden_states=x, attention_mask=mask.float().log(), output_attentions=True),
    ]
    for output, weights in calls:
        assert weights is None
        assert_close(output, layer(x, REAL))
    for name, option in {"encoder_hidden_states": x, "is_causal": True, "cu_seq_lens_q": x, "scaling": 0.0}.items():
        with pytest.raises(ValueError, match=f"got {name}: layers of this library do not support it"):
            adapter(x, **{name: option})
    for argument in (torch.ones(2), True):
        with pytest.raises(ValueError, match="more positional arguments"):
            adapter(x, mask, argument)
