"""Attention that is taken, and attention that looks alike and is not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from probattn import SoftmaxAttention
from probattn.models import replace_attention

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def timm_attention(**options):
    return pytest.importorskip("timm").layers.Attention(8, num_heads=2, **options)


class Multihead(nn.MultiheadAttention):
    """A user's own that gives as many outputs as a test says."""

    def __init__(self, *, outputs=2, factor=1.0, **options):
        super().__init__(8, 2, batch_first=True, **options)
        self.outputs, self.factor = outputs, factor

    def forward(self, query, key, value):
        attended = super().forward(self.factor * query, key, value)[0]
        return attended if self.outputs is None else (attended, *[attended.sum()] * (self.outputs - 1))


class Residual(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        output = self.attention(x, x, x)
        return x + (output if isinstance(output, torch.Tensor) else output[0])


@pytest.mark.parametrize("outputs", [None, 1, 2, 3])
def test_the_form_of_the_output_is_the_old_ones(outputs):
    network, x = nn.Sequential(Residual(Multihead(outputs=outputs)), nn.Linear(8, 2)), torch.randn(2, 5, 8)
    converted = replace_attention(network, attention=SoftmaxAttention)
    assert_close(converted(x), network(x), atol=1e-6, rtol=0)
    attended = converted.wrapped[0].attention(x, x, x)
    assert (None if isinstance(attended, torch.Tensor) else len(attended)) == outputs


def test_a_zero_output_map_hides_nothing():
    network = nn.Sequential(Residual(Multihead(factor=2.0)))
    for parameter in network[0].attention.out_proj.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(ValueError, match="not the softmax attention"):
        replace_attention(network, attention=SoftmaxAttention)
    network[0].attention.factor = 1.0
    converted = replace_attention(network, attention=SoftmaxAttention)
    assert not converted.layers()[0].out.weight.any(), "the weights that a probe has drawn are its own"


@pytest.mark.parametrize("which", ["VideoMAE", "Yolos", "Dinov2", "Electra", "Roberta", "Wav2Vec2"])
def test_encoders_of_hugging_face_compute_what_they_did(which):
    transformers = pytest.importorskip("transformers", "5.10" if which == "VideoMAE" else None)
    options = SIZES | {"attention_probs_dropout_prob": 0.3, "attention_dropout": 0.3, "vocab_size": 20, "patch_size": 4}
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
        assert_close(converted(x), network(x).last_hidden_state, atol=1e-5, rtol=0)


def test_dropout_of_timms_attention_is_kept_before_and_after_the_output_map():
    network = nn.Sequential(timm_attention(attn_drop=0.3, proj_drop=0.2))
    converted = replace_attention(network, attention=SoftmaxAttention)
    assert converted.layers()[0].dropout == 0.3
    assert [module.p for module in converted.modules() if isinstance(module, nn.Dropout)] == [0.2]


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (lambda: Multihead(factor=2.0), "not the softmax attention"),
        (lambda: Multihead(add_bias_kv=True), "not the softmax attention"),
        (lambda: Multihead(add_zero_attn=True), "not the softmax attention"),
        (lambda: nn.MultiheadAttention(8, 2, kdim=4), "not where its kind has them"),
        (lambda: timm_attention(qk_norm=True, norm_layer=nn.LayerNorm), "not the softmax attention"),
        (lambda: timm_attention(scale_norm=True, norm_layer=nn.LayerNorm), "not the softmax attention"),
        (lambda: timm_attention(attn_head_dim=8), ""),
        (lambda: pytest.importorskip("timm").models.beit.Attention(8, 2, window_size=(2, 2)), ""),
    ],
)
def test_what_looks_alike_is_refused_by_its_path_and_class(attention, message):
    network = nn.Sequential(nn.Linear(8, 8), attention())
    with pytest.raises(ValueError, match=rf"'1' \([\w.]+\) cannot be replaced: .*{message}.*add a transformer block"):
        replace_attention(network, attention=SoftmaxAttention)


class OwnAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv, self.proj = 2, nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_attention_of_unknown_kinds_is_named():
    with pytest.raises(
        ValueError, match=r"MultiheadAttention.*this network has '1' \(\S+\.OwnAttention\).*add a transf"
    ):
        replace_attention(nn.Sequential(nn.Flatten(), OwnAttention()), attention=SoftmaxAttention)
    with pytest.raises(ValueError, match=r"has none"):
        replace_attention(nn.Flatten(), attention=SoftmaxAttention)
    both = nn.Sequential(OwnAttention(), timm_attention())
    with pytest.raises(ValueError, match=r"'0' \(\S+\.OwnAttention\)"):
        replace_attention(both, attention=SoftmaxAttention, layers="all")
    x = torch.randn(2, 5, 8)
    assert_close(replace_attention(both, attention=SoftmaxAttention, layers=[0])(x), both(x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_decoder_is_refused(implementation):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(vocab_size=20, is_decoder=True, attn_implementation=implementation, **SIZES)
    with pytest.raises(ValueError, match="softmax attention of its|got cache"):
        replace_attention(transformers.BertLMHeadModel(config), attention=SoftmaxAttention)(torch.randint(20, (2, 4)))


def test_a_causal_option_at_the_call_is_refused():
    transformers = pytest.importorskip("transformers")
    network = transformers.CLIPTextModel(transformers.CLIPTextConfig(vocab_size=20, **SIZES))
    with pytest.raises(ValueError, match="got is_causal"):
        replace_attention(network, attention=SoftmaxAttention)(torch.randint(20, (2, 4)))


class Pooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.probe = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(self.probe.expand(len(x), 1, 8), x, x)[0][:, 0]


def test_a_pooling_head_of_ones_own_is_refused_at_the_call_and_left_out_by_index():
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    network, x = nn.Sequential(block, Pooling()), torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match="cross-attention"):
        replace_attention(network, attention=SoftmaxAttention)(x)
    converted = replace_attention(network, attention=SoftmaxAttention, layers=[0])
    assert_close(converted(x), network(x), atol=1e-5, rtol=0)
