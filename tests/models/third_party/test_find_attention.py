"""Structures of attention that are taken, and those that look alike and are not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from probattn import SoftmaxAttention
from probattn.models import replace_attention
from probattn.models.third_party.adapters import MultiheadAttentionAdapter


class Joint(nn.Module):
    """As timm's, with what a test adds."""

    def __init__(self, width=8, *, factor=1.0, rows=3, outputs=None, **parts):
        super().__init__()
        self.num_heads, self.factor, self.outputs = 2, factor, outputs
        self.qkv, self.proj = nn.Linear(8, rows * width), nn.Linear(width, 8)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x, attn_mask=None):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scale = self.factor * q.shape[-1] ** -0.5
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, scale=scale)
        return form(self.proj(attended.transpose(1, 2).flatten(2)), self.outputs)


class Separate(nn.Module):
    """A user's own, with maps of its own for query, key and value."""

    def __init__(self, *, outputs=None, **parts):
        super().__init__()
        self.num_heads, self.outputs = 2, outputs
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return form(self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)), self.outputs)


class Multihead(nn.MultiheadAttention):
    """A user's own that gives as many outputs as a test says."""

    def __init__(self, *, outputs=None):
        super().__init__(8, 2, batch_first=True)
        self.outputs = outputs

    def forward(self, *x):
        return form(super().forward(*x)[0], self.outputs)


class Residual(nn.Module):
    """A block that takes the first output, or the only one."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        output = self.attention(*(x,) * (3 if isinstance(self.attention, Multihead | MultiheadAttentionAdapter) else 1))
        return x + (output if isinstance(output, torch.Tensor) else output[0])


def form(attended, outputs):
    return attended if outputs is None else (attended, *[attended.sum()] * (outputs - 1))[:outputs]


class SelfAttention(nn.Module):
    """Query, key and value as in transformers 4, with its head mask as second argument."""

    def __init__(self):
        super().__init__()
        self.num_attention_heads, self.dropout = 2, nn.Dropout(0.0)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, hidden_states, head_mask=None, output_attentions=False):
        q, k, v = (f(hidden_states).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return (F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2),)


class Output(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.dropout = nn.Linear(8, 8), nn.Dropout(0.0)

    def forward(self, hidden_states, input_tensor):
        return self.dropout(self.dense(hidden_states))


class ViT4Attention(nn.Module):
    """ViTAttention of transformers 4: a tuple of whatever the inner one gives."""

    def __init__(self):
        super().__init__()
        self.attention, self.output = SelfAttention(), Output()

    def forward(self, hidden_states):
        outputs = self.attention(hidden_states, None, False)
        return self.output(outputs[0], hidden_states)


@pytest.mark.parametrize("attention", [Joint, ViT4Attention])
def test_attention_of_that_structure_is_taken(attention):
    network, x = nn.Sequential(nn.Linear(8, 8), attention(), attention()), torch.randn(2, 5, 8)
    converted = replace_attention(network, attention=SoftmaxAttention, layers="all")
    assert len(converted.layers()) == 2
    assert_close(converted(x), network(x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("outputs", [None, 1, 2, 3])
@pytest.mark.parametrize("attention", [Joint, Separate, Multihead])
def test_the_form_of_the_output_is_the_old_ones(attention, outputs):
    network, x = nn.Sequential(Residual(attention(outputs=outputs)), nn.Linear(8, 2)), torch.randn(2, 5, 8)
    converted = replace_attention(network, attention=SoftmaxAttention)
    assert_close(converted(x), network(x), atol=1e-6, rtol=0)
    assert isinstance(converted.wrapped[0].attention(*(x,) * (3 if attention is Multihead else 1)), tuple) == bool(
        outputs
    )


def test_a_zero_output_map_hides_nothing():
    network = nn.Sequential(nn.Linear(8, 8), Joint(factor=2.0))
    for parameter in network[1].proj.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(ValueError, match="is not the softmax attention of its linear maps"):
        replace_attention(network, attention=SoftmaxAttention)
    network[1].factor = 1.0
    converted = replace_attention(network, attention=SoftmaxAttention)
    assert not converted.layers()[0].out.weight.any(), "the weights that a probe has drawn are its own"


@pytest.mark.parametrize("which", ["VideoMAE", "Yolos", "Dinov2", "Electra", "Roberta", "Wav2Vec2"])
def test_encoders_of_hugging_face_compute_what_they_did(which):
    transformers = pytest.importorskip("transformers", "5.10" if which == "VideoMAE" else None)
    options = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    options |= {"attention_probs_dropout_prob": 0.3, "attention_dropout": 0.3, "vocab_size": 20, "patch_size": 4}
    options |= {"image_size": [8, 8] if which == "Yolos" else 8, "num_frames": 2, "num_detection_tokens": 2}
    options |= {"embedding_size": 8, "conv_dim": (8,) * 7, "num_conv_pos_embeddings": 4}
    options |= {"num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0}
    network = getattr(transformers, f"{which}Model")(getattr(transformers, f"{which}Config")(**options)).eval()
    x = {
        "VideoMAE": torch.randn(2, 2, 3, 8, 8),
        "Electra": torch.randint(20, (2, 5)),
        "Roberta": torch.randint(2, 20, (2, 5)),
        "Wav2Vec2": torch.randn(2, 1000),
    }.get(which, torch.randn(2, 3, 8, 8))
    converted = replace_attention(network, attention=SoftmaxAttention, layers="all")
    assert [layer.dropout for layer in converted.layers()] == [0.3, 0.3]
    with torch.no_grad():
        assert_close(converted(x), network(x)[0], atol=1e-5, rtol=0)


def test_a_causal_option_at_the_call_is_refused():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    network = transformers.CLIPTextModel(transformers.CLIPTextConfig(vocab_size=20, **sizes))
    with pytest.raises(ValueError, match="got is_causal"):
        replace_attention(network, attention=SoftmaxAttention)(torch.randint(20, (2, 4)))


def test_the_old_output_map_moves_into_the_layer_and_leaves_an_identity():
    network = nn.Sequential(ViT4Attention())
    converted = replace_attention(network, attention=SoftmaxAttention)
    assert isinstance(converted.wrapped[0].output.dense, nn.Identity)
    assert torch.equal(converted.layers()[0].out.weight, network[0].output.dense.weight)
    assert sum(p.numel() for p in converted.parameters()) == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("which", ["CLIPVision", "Bert"])
def test_encoders_without_a_head_give_their_last_hidden_state(which):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    if which == "Bert":
        network, x = transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes)), torch.randint(20, (2, 4))
    else:
        config = transformers.CLIPVisionConfig(image_size=8, patch_size=4, **sizes)
        network, x = transformers.CLIPVisionModel(config), torch.randn(2, 3, 8, 8)
    converted = replace_attention(network.eval(), attention=SoftmaxAttention, layers="all")
    assert len(converted.layers()) == 2
    assert_close(converted(x), network(x).last_hidden_state, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (lambda: Joint(factor=2.0), "is not the softmax attention of its linear maps"),
        (lambda: Joint(16), r"shapes \[\(8, 16\), \(16, 8\)\]"),
        (lambda: Joint(gate=nn.Linear(8, 8)), r"its gate \(Linear\)"),
        (lambda: Joint(q_norm=nn.LayerNorm(4, elementwise_affine=False)), r"norms of queries and keys \(q_norm\)"),
        (lambda: Joint(bias_table=nn.Parameter(torch.zeros(2))), "its parameter bias_table"),
        (lambda: Joint(rows=2), "its linear maps have shapes"),
        (lambda: Joint(is_causal=True), r"a causal mask \(is_causal\)"),
        (lambda: Joint(attn_drop=nn.Dropout(0.1), dropout=nn.Dropout(0.1)), r"its dropout \(Dropout\)"),
        (lambda: Joint(dropout_prob=0.1, dropout=nn.Dropout(0.2)), r"its dropout \(Dropout\)"),
        (lambda: Joint(q_bias=nn.Parameter(torch.ones(8))), "is not the softmax attention"),
        (lambda: Separate(q_bias=nn.Parameter(torch.ones(8))), "its parameter q_bias"),
        (lambda: Separate(resid_dropout=nn.Dropout(0.1)), r"its resid_dropout \(Dropout\)"),
        (lambda: Separate(dropout=nn.LayerNorm(8)), r"its dropout \(LayerNorm\)"),
        (lambda: Separate(outputs=0), "it returns a tuple, neither"),
    ],
)
def test_what_looks_alike_is_refused_by_name(attention, message):
    with pytest.raises(ValueError, match=rf"the attention at '1' \(\w+\) cannot be replaced: .*{message}"):
        replace_attention(nn.Sequential(nn.Linear(8, 8), attention()), attention=SoftmaxAttention)


def test_a_rate_of_dropout_may_have_a_module_beside_it():
    """As in the BERT of transformers 4."""
    network = nn.Sequential(Joint(dropout_prob=0.3, dropout=nn.Dropout(0.3)))
    assert replace_attention(network, attention=SoftmaxAttention).layers()[0].dropout == 0.3


def test_identities_and_dropout_are_no_hindrance():
    parts = {"q_norm": nn.Identity(), "norm": nn.Identity(), "attn_drop": nn.Dropout(0.3), "proj_drop": nn.Dropout(0.2)}
    parts["more"] = nn.Dropout(0.0)
    converted = replace_attention(nn.Sequential(Joint(**parts)), attention=SoftmaxAttention)
    assert converted.layers()[0].dropout == 0.3
    assert [module.p for module in converted.modules() if isinstance(module, nn.Dropout)] == [0.2]


@pytest.mark.parametrize("place", ["attention_dropout", "dropout_prob", "attn_drop", "dropout"])
@pytest.mark.parametrize("kind", [float, nn.Dropout])
def test_dropout_of_probabilities_is_read_under_each_of_its_names(place, kind):
    converted = replace_attention(nn.Sequential(Separate(**{place: kind(0.3)})), attention=SoftmaxAttention)
    assert converted.layers()[0].dropout == 0.3
