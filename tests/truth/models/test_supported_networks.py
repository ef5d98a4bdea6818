"""Converted networks compute what they did: the documentation's table, weights row by row, padding."""

import re
import warnings
from pathlib import Path

import pytest
import torch
import torchvision
from third_party_networks import NAMES, third_party
from torch import nn
from torch.testing import assert_close
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

from probattn import (
    AnchoredAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
)
from probattn.models import replace_attention
from probattn.models.third_party.converted_network import call_network

PAGE = Path(__file__).parents[3] / "docs" / "third-party-networks.md"
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = SIZES | {"vocab_size": 20, "max_position_embeddings": 12, "pad_token_id": 0}
PIXELS = SIZES | {"image_size": 16, "patch_size": 4}
WINDOWS = {"patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2)}


def words(name, **options):
    return lambda: (hugging_face(name, **(WORDS | options)), torch.randint(3, 20, (4, 6)))


def pixels(name, **options):
    return lambda: (hugging_face(name, **(PIXELS | options)), torch.randn(4, 3, 16, 16))


def windows(name):
    return lambda: (hugging_face(name, image_size=16, **WINDOWS), torch.randn(4, 3, 16, 16))


def hugging_face(name, **options):
    transformers = pytest.importorskip("transformers")
    if name in ("DistilBert", "Beit") and int(transformers.__version__.partition(".")[0]) < 5:
        pytest.skip("documented: version 5 of transformers")
    config = getattr(transformers, name.removesuffix("Encoder") + "Config")
    return getattr(transformers, f"{name}Model")(config(**options))


def timm_vit(name, **options):
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": 16, "patch_size": 4, "num_classes": 3} | options
    return lambda: (timm_network(name, **sizes), torch.randn(4, 3, 16, 16))


def timm_windows(name):
    return lambda: (timm_network(name, img_size=16, **WINDOWS), torch.randn(4, 3, 16, 16))


def timm_network(name, **options):
    timm = pytest.importorskip("timm")
    if not timm.is_model(name):
        pytest.skip(f"timm {timm.__version__} has no {name}")
    return timm.create_model(name, **options)


def torchvision_swin(**options):
    return lambda: (SwinTransformer([2, 2], 8, [2, 2], [2, 2], [4, 4], **options), torch.randn(4, 3, 16, 16))


def torchvision_vit():
    return torchvision.models.VisionTransformer(16, 4, 2, 2, 16, 32, num_classes=3), torch.randn(4, 3, 16, 16)


def torch_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(4, 5, 8)


def coatnet():
    return timm_network("coatnet_nano_rw_224", img_size=32), torch.randn(1, 3, 32, 32)


NETWORKS = {
    ("PyTorch", "nn.TransformerEncoder"): torch_encoder,
    ("torchvision", "ViT"): torchvision_vit,
    ("torchvision", "Swin"): torchvision_swin(),
    ("torchvision", "Swin v2"): torchvision_swin(block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2),
    ("timm", "ViT"): timm_vit("vit_tiny_patch16_224"),
    ("timm", "DeiT"): timm_vit("deit_tiny_patch16_224"),
    ("timm", "DeiT III"): timm_vit("deit3_small_patch16_224"),
    ("timm", "DINOv2"): timm_vit("vit_small_patch14_dinov2"),
    ("timm", "CLIP"): timm_vit("vit_base_patch16_clip_224"),
    ("timm", "SigLIP"): timm_vit("vit_base_patch16_siglip_224"),
    ("timm", "EVA"): timm_vit("eva_giant_patch14_224"),
    ("timm", "CaiT"): timm_vit("cait_xxs24_224"),
    ("timm", "XCiT"): timm_vit("xcit_nano_12_p16_224", patch_size=8),
    ("timm", "BEiT"): timm_vit("beit_base_patch16_224"),
    ("timm", "Swin"): timm_windows("swin_tiny_patch4_window7_224"),
    ("timm", "Swin v2"): timm_windows("swinv2_tiny_window8_256"),
    ("timm", "CoAtNet"): coatnet,
    ("timm", "EVA-02"): timm_vit("eva02_tiny_patch14_224"),
    ("timm", "DINOv3"): timm_vit("vit_small_patch16_dinov3"),
    ("Hugging Face", "BERT"): words("Bert"),
    ("Hugging Face", "RoBERTa"): words("Roberta"),
    ("Hugging Face", "XLM-RoBERTa"): words("XLMRoberta"),
    ("Hugging Face", "ELECTRA"): words("Electra", embedding_size=8),
    ("Hugging Face", "DistilBERT"): words("DistilBert", dim=16, n_heads=2, n_layers=2, hidden_dim=32),
    ("Hugging Face", "ViT"): pixels("ViT"),
    ("Hugging Face", "DeiT"): pixels("DeiT"),
    ("Hugging Face", "DINOv2"): pixels("Dinov2"),
    ("Hugging Face", "CLIP vision"): pixels("CLIPVision"),
    ("Hugging Face", "SigLIP vision"): pixels("SiglipVision"),
    ("Hugging Face", "BEiT without relative position bias"): pixels("Beit"),
    ("Hugging Face", "BEiT"): pixels("Beit", use_relative_position_bias=True),
    ("Hugging Face", "Swin"): windows("Swin"),
    ("Hugging Face", "Swin v2"): windows("Swinv2"),
    ("Hugging Face", "DINOv3"): pixels("DINOv3ViT"),
    ("Hugging Face", "DeBERTa"): words("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    ("Hugging Face", "DeBERTa-v2"): words("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    ("Hugging Face", "MPNet"): words("MPNet"),
    ("Hugging Face", "T5 encoder"): words("T5Encoder", d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2),
    ("Hugging Face", "ModernBERT"): words("ModernBert", bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
    ("Hugging Face", "ALBERT"): words("Albert", embedding_size=8),
    ("Hugging Face", "GPT-2"): words("GPT2", bos_token_id=1, eos_token_id=2),
    ("Hugging Face", "Llama"): words("Llama"),
}


def table():
    """Layers that can be replaced and the feature that is not supported, by library and network."""
    text = PAGE.read_text(encoding="utf-8").partition("## Supported networks")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*$", text, re.M)[2:]]
    return {(library, each): rest for library, names, *rest in rows for each in names.split(", ")}


TABLE = table()


def build(make):
    """The network in evaluation mode, with weights so large that attention matters, and an input."""
    with warnings.catch_warnings(action="ignore"):  # of the libraries, about sizes this small
        built, x = make()
    for parameter in built.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.3)
    return built.eval(), x


@torch.no_grad()
def check_same_outputs(network, x, layers):
    converted = replace_attention(network, attention=SoftmaxAttention, layers=layers)
    expected = call_network(network, x, None)
    assert_close(converted(x), expected, atol=1e-5 * expected.abs().max().item(), rtol=0)
    for name, parameter in converted.layers()[0].named_parameters():
        if name.startswith("query_key_value"):
            parameter *= -2
    assert not torch.allclose(converted(x), expected, atol=1e-4 * expected.abs().max().item()), "the layer is not used"


def check_refused(network, x, layers):
    """At conversion, or at the call if the network passes what is not supported as an argument."""
    with pytest.raises(ValueError, match="add a transformer|leave (it|the layer) out"):
        replace_attention(network, attention=SoftmaxAttention, layers=layers)(x)


def test_the_table_lists_these_networks():
    assert TABLE.keys() == NETWORKS.keys()


@pytest.mark.parametrize("network", NETWORKS, ids=" ".join)
def test_a_network_computes_the_same_with_softmax_attention_of_ours_or_is_refused(network):
    if network[1].startswith("BEiT without"):
        pytest.importorskip("transformers", "5.10")  # older ones pass the missing bias by position
    layers, _ = TABLE[network]
    built, x = build(NETWORKS[network])
    same = {"none": [], "class attention": [[-1], [-2, -1]], "all": ["last", "all"]}[layers]
    for choice in same:
        check_same_outputs(built, x, choice)
    for choice in {"none": ["last", "all"], "class attention": ["all"]}.get(layers, []):
        check_refused(built, x, choice)


@pytest.mark.parametrize("layers", ["last", "all", [0]])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@torch.no_grad()
def test_softmax_attention_reproduces_the_original_in_float64_with_and_without_padding(name, layers):
    given = third_party(name)
    for training in (True, False):
        given.network.train(training)
        converted = replace_attention(given.network, attention=SoftmaxAttention, layers=layers)
        assert len(converted.layers()) == (3 if layers == "all" else 1)
        for mask in (None, given.mask):
            expected, actual = given.original(given.network, given.x, mask), converted(given.x, mask)
            if mask is not None and actual.dim() == 3:
                expected, actual = expected[mask], actual[mask]
            assert_close(actual, expected, atol=1e-10, rtol=0)


KEY_GAIN = (1.5 / 4) ** 0.5  # of RBF kernels on heads of four dimensions


@pytest.mark.parametrize(
    ("factory", "joint", "rows", "gain"),
    [
        (SoftmaxAttention, "query_key_value", "qkv", 1.0),
        (KernelAttention.partial(symmetric=True), "query_value", "qv", KEY_GAIN),
        (KernelAttention.partial(kernel="ard"), "query_key_value", "qkv", 1.0),
        (KEPSVGPAttention.partial(rank=4), "query_key", "qk", 1.0),
        (KEPSVGPAttention.partial(rank=4, mean="softmax"), "query_key", "qk", 1.0),
        (SGPAttention, "query_value", "qv", 1.0),
        (SGPAttention.partial(kernel="rbf"), "query_value", "qv", KEY_GAIN),
        (SparseCGPAttention, "query_key_value", "qkv", KEY_GAIN),
        (AnchoredAttention, "query_key_value", "qkv", KEY_GAIN),
    ],
)
def test_new_layers_take_over_the_rows_of_weights_and_biases_with_their_gain(factory, joint, rows, gain):
    old = nn.MultiheadAttention(8, 2, dropout=0.25, dtype=torch.float64)
    for parameter in old.parameters():
        nn.init.normal_(parameter)
    (layer,) = replace_attention(nn.ModuleList([old]), attention=factory).layers()
    factors = {"q": gain, "k": gain, "v": 1.0}
    for name in ("weight", "bias"):
        blocks = dict(zip("qkv", getattr(old, f"in_proj_{name}").chunk(3), strict=True))
        expected = torch.cat([factors[part] * blocks[part] for part in rows])
        assert_close(getattr(getattr(layer, joint), name), expected)
    if mean := getattr(layer, "mean", None):
        assert torch.equal(mean.value.bias, blocks["v"])
        assert layer.dropout == 0.25
    if mean or "v" in rows:
        assert torch.equal((mean or layer).out.weight, old.out_proj.weight)
        assert torch.equal((mean or layer).out.bias, old.out_proj.bias)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}


def test_a_missing_bias_is_none_in_the_joint_map_and_zero_in_the_output_map():
    old = nn.MultiheadAttention(8, 2, bias=False)
    (layer,) = replace_attention(nn.ModuleList([old]), attention=SoftmaxAttention).layers()
    assert layer.query_key_value.bias is None
    assert not layer.out.bias.any()
