"""Features of attention without a counterpart, in and above a layer."""

import pytest
import torch
from torch import nn

from probattn import SoftmaxAttention
from probattn.models import replace_attention
from probattn.models.third_party.obstacles import describe_unrecognised, find_obstacle


class Attention(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x, rope=None, attn_mask=None):
        return x


class Plain(Attention):
    def forward(self, x):
        return x


def network(attention, **parts):
    outer = nn.Module()
    for name, part in parts.items():
        setattr(outer, name, part)
    outer.blocks = nn.Sequential(attention)
    return outer


@pytest.mark.parametrize(
    ("parts", "obstacle"),
    [
        ({}, None),
        ({"is_causal": False, "dropout": nn.Dropout(), "qkv": nn.Linear(2, 6)}, None),
        ({"is_causal": True}, "a causal mask (is_causal)"),
        ({"is_decoder": True}, "a causal mask (is_decoder)"),
        ({"is_cross_attention": True}, "cross-attention (is_cross_attention)"),
        ({"rotary_emb": nn.Linear(2, 2)}, "rotary position embeddings (rotary_emb)"),
        ({"relative_position_bias_table": nn.Parameter(torch.zeros(2))}, "a relative position bias"),
        ({"inner": nn.ModuleDict({"rel_pos": nn.Linear(2, 2)})}, "a relative position bias (rel_pos)"),
        ({"proj_l": nn.Linear(2, 2)}, "talking heads (proj_l)"),
        ({"logit_scale": nn.Parameter(torch.zeros(2))}, "a learned scale of the scores (logit_scale)"),
        ({"q_norm": nn.LayerNorm(2)}, "norms of queries and keys (q_norm)"),
        ({"q_norm": nn.Identity(), "rope": None}, None),
    ],
)
def test_parts_of_a_layer_are_known_by_their_names(parts, obstacle):
    found = find_obstacle(network(Attention(**parts)), "blocks.0")
    assert found == obstacle or found.startswith(obstacle)


def test_parts_above_a_layer_matter_only_if_its_arguments_take_them():
    rope, bias = {"rope": nn.Linear(2, 2)}, {"rel_pos_bias": nn.Parameter(torch.zeros(2))}
    assert find_obstacle(network(Attention(), **rope), "blocks.0") == "rotary position embeddings (rope)"
    assert find_obstacle(network(Attention(), **bias), "blocks.0") == "a relative position bias (rel_pos_bias)"
    for parts in (rope, bias, {"temperature": nn.Parameter(torch.zeros(2))}):
        assert find_obstacle(network(Plain(), **parts), "blocks.0") is None
    beside = nn.ModuleDict({"other": network(Attention(), **rope), "this": network(Attention())})
    assert find_obstacle(beside, "this.blocks.0") is None


def test_attention_of_unknown_structure_is_named():
    known = "supported are nn.MultiheadAttention.*"
    with pytest.raises(ValueError, match=rf"{known}; 'blocks.0' \(PlainAttention\) is none of them; add a transfor"):
        replace_attention(network(type("PlainAttention", (Plain,), {})()), attention=SoftmaxAttention)
    with pytest.raises(ValueError, match=f"{known}; the network has none"):
        replace_attention(network(nn.Flatten()), attention=SoftmaxAttention)
    several = nn.ModuleDict({"a": Attention(), "b": Attention(is_causal=True)})
    assert describe_unrecognised(several).startswith("the attention at 'b' (Attention) has a causal mask (is_causal), ")


def test_a_pooling_head_with_a_learned_query_is_not_a_layer():
    class Pooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.probe = nn.Parameter(torch.randn(1, 1, 8))
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(self.probe.expand(len(x), 1, 8), x, x)[0][:, 0]

    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    given, x = nn.Sequential(block, Pooling()), torch.randn(2, 5, 8)
    converted = replace_attention(given, attention=SoftmaxAttention, layers="all")
    assert [path for path, module in converted.named_modules() if module is converted.layers()[0]] == [
        "wrapped.0.self_attn.layer"
    ]
    torch.testing.assert_close(converted(x), given(x), atol=1e-5, rtol=0)
