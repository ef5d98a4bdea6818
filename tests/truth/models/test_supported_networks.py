"""Converted networks compute what they did: the documentation's table, weights row by row,
padding."""

import functools
import re
import warnings
from pathlib import Path

import pytest
import torch
import torchvision
from third_party_networks import NAMES, third_party
from torch import nn
from torch.testing import assert_close
from torchvision.models.swin_transformer import (
    PatchMergingV2,
    SwinTransformer,
    SwinTransformerBlockV2,
)

from probattn import (
    AnchoredAttention,
    KEPSVGPAttention,
    KernelAttention,
    RFFCGPAttention,
    RFFGPAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
)
from probattn.models import replace_attention
from probattn.models.third_party.folded_draws import call_network

PAGE = Path(__file__).parents[3] / "docs" / "third-party-networks.md"
WINDOWS = {"patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2)}
TIMM = {
    "ViT": "vit_tiny_patch16_224",
    "DeiT": "deit_tiny_patch16_224",
    "DeiT III": "deit3_small_patch16_224",
    "DINOv2": "vit_small_patch14_dinov2",
    "CLIP": "vit_base_patch16_clip_224",
    "SigLIP": "vit_base_patch16_siglip_224",
    "EVA": "eva_giant_patch14_224",
    "CaiT": "cait_xxs24_224",
    "XCiT": "xcit_nano_12_p16_224",
    "BEiT": "beit_base_patch16_224",
    "Swin": "swin_tiny_patch4_window7_224",
    "Swin v2": "swinv2_tiny_window8_256",
    "CoAtNet": "coatnet_nano_rw_224",
    "EVA-02": "eva02_tiny_patch14_224",
    "DINOv3": "vit_small_patch16_dinov3",
}
HUGGING_FACE = {  # a configuration uses those that it knows
    **{
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
    **{
        "vocab_size": 20,
        "max_position_embeddings": 12,
        "embedding_size": 8,
        "image_size": 16,
        "patch_size": 4,
    },
    **{
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    **{"dim": 16, "n_heads": 2, "n_layers": 2, "hidden_dim": 32},  # DistilBERT
    **{"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},  # T5
    **{"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},  # DeBERTa
}


def torch_network(name):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(4, 5, 8)


def torchvision_network(name):
    x = torch.randn(4, 3, 16, 16)
    if name == "ViT":
        return torchvision.models.VisionTransformer(16, 4, 2, 2, 16, 32, num_classes=3), x
    v2 = (
        {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
        if name == "Swin v2"
        else {}
    )
    return SwinTransformer([2, 2], 8, [2, 2], [2, 2], [4, 4], **v2), x


def timm_network(name):
    timm = pytest.importorskip("timm")
    if not timm.is_model(TIMM[name]):
        pytest.skip(f"timm {timm.__version__} has no {name}")
    size = 16
    options = {
        "patch_size": 8 if name == "XCiT" else 4,
        "embed_dim": 16,
        "depth": 2,
        "num_heads": 2,
    }
    if name == "CoAtNet":
        size, options = 32, {}
    elif name in ("Swin", "Swin v2"):
        options = WINDOWS
    return timm.create_model(TIMM[name], img_size=size, num_classes=3, **options), torch.randn(
        2, 3, size, size
    )


@functools.cache
def names_of(library):
    return {name.lower(): name for name in dir(library)}


def hugging_face(name):
    """The network that transformers calls like this, but for capitals, blanks and hyphens."""
    transformers = pytest.importorskip("transformers")
    if name[:4] in ("Dist", "BEiT") and int(transformers.__version__.partition(".")[0]) < 5:
        pytest.skip("documented: version 5 of transformers")
    if name.startswith("BEiT without"):
        pytest.importorskip("transformers", "5.10")  # older ones pass the missing bias by position
    kind = re.sub("[ -]", "", name.partition(" without")[0]).lower().replace("dinov3", "dinov3vit")
    classes = names_of(transformers)
    options = HUGGING_FACE | {"use_relative_position_bias": name == "BEiT"}
    if name.startswith("Swin"):
        options = WINDOWS | {"image_size": 16}
    config = getattr(transformers, classes[kind.removesuffix("encoder") + "config"])(**options)
    network = getattr(transformers, classes[kind + "model"])(config)
    is_text = network.main_input_name == "input_ids"
    return network, torch.randint(3, 20, (4, 6)) if is_text else torch.randn(4, 3, 16, 16)


LIBRARIES = {"PyTorch": torch_network, "torchvision": torchvision_network, "timm": timm_network}
LIBRARIES["Hugging Face"] = hugging_face


def table():
    """Layers that can be replaced and the feature that is not supported, by library and network."""
    text = PAGE.read_text("utf-8").partition("## Supported networks")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*$", text, re.M)[2:]
    ]
    return {(library, name): rest for library, names, *rest in rows for name in names.split(", ")}


TABLE = table()


def build(library, name):
    """The network in evaluation mode, with weights so large that attention matters, and an
    input."""
    with warnings.catch_warnings(action="ignore"):  # of the libraries, about sizes this small
        built, x = LIBRARIES[library](name)
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
    assert not torch.allclose(converted(x), expected, atol=1e-4 * expected.abs().max().item()), (
        "the layer is not used"
    )


def check_refused(network, x, layers):
    """At conversion, or at the call if the network passes what is not supported as an argument."""
    with pytest.raises(ValueError, match="add a transformer|leave (it|the layer) out"):
        replace_attention(network, attention=SoftmaxAttention, layers=layers)(x)


def test_the_table_is_read():
    assert {library for library, _ in TABLE} == LIBRARIES.keys()
    assert len(TABLE) >= 42


@pytest.mark.parametrize("network", TABLE, ids=" ".join)
def test_a_network_computes_the_same_with_softmax_attention_of_ours_or_is_refused(network):
    layers, _ = TABLE[network]
    built, x = build(*network)
    converted = {"none": [], "class attention": [[-1], [-2, -1]], "all": ["last", "all"]}
    refused = {"none": ["last", "all"], "class attention": ["all"], "all": []}
    for choice in converted[layers]:
        check_same_outputs(built, x, choice)
    for choice in refused[layers]:
        check_refused(built, x, choice)


@pytest.mark.parametrize("layers", ["last", "all", [0]])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@torch.no_grad()
def test_softmax_attention_reproduces_the_original_in_float64_with_and_without_padding(
    name, layers
):
    given = third_party(name)
    for training in (True, False):
        given.network.train(training)
        converted = replace_attention(given.network, attention=SoftmaxAttention, layers=layers)
        assert len(converted.layers()) == (3 if layers == "all" else 1)
        for mask in (None, given.mask):
            expected = given.original(given.network, given.x, mask)
            actual = converted(given.x, mask)
            if mask is not None and actual.dim() == 3:
                expected, actual = expected[mask], actual[mask]
            assert_close(actual, expected, atol=1e-10, rtol=0)


KEY_GAIN = (1.5 / 4) ** 0.5  # of RBF kernels on heads of four dimensions


GAINS = [  # of queries and keys, and the map in which the new layer has the rows
    (SoftmaxAttention, "query_key_value", 1.0),
    (KernelAttention.partial(symmetric=True), "query_value", KEY_GAIN),
    (KernelAttention.partial(kernel="ard"), "query_key_value", 1.0),
    (KEPSVGPAttention.partial(rank=4), "query_key", 1.0),
    (KEPSVGPAttention.partial(rank=4, mean="softmax"), "query_key", 1.0),
    (SGPAttention, "query_value", 1.0),
    (SGPAttention.partial(kernel="rbf"), "query_value", KEY_GAIN),
    (SparseCGPAttention, "query_key_value", KEY_GAIN),
    (AnchoredAttention, "query_key_value", KEY_GAIN),
    (RFFGPAttention, "query_value", 1.0),
    (RFFGPAttention.partial(symmetric=False), "query_key_value", 1.0),
    (RFFCGPAttention, "query_key_value", KEY_GAIN),
]


@pytest.mark.parametrize(("factory", "joint", "gain"), GAINS)
def test_new_layers_take_over_the_rows_of_weights_and_biases_with_their_gain(factory, joint, gain):
    old = nn.MultiheadAttention(8, 2, dropout=0.25, dtype=torch.float64)
    for parameter in old.parameters():
        nn.init.normal_(parameter)
    (layer,) = replace_attention(nn.ModuleList([old]), attention=factory).layers()
    factors = {"query": gain, "key": gain, "value": 1.0}
    for name in ("weight", "bias"):
        blocks = dict(zip(factors, getattr(old, f"in_proj_{name}").chunk(3), strict=True))
        expected = torch.cat([factors[part] * blocks[part] for part in joint.split("_")])
        assert_close(getattr(getattr(layer, joint), name), expected)
    if mean := getattr(layer, "mean", None):
        assert torch.equal(mean.value.bias, blocks["value"])
        assert layer.dropout == 0.25
    if mean or "value" in joint:
        assert torch.equal((mean or layer).out.weight, old.out_proj.weight)
        assert torch.equal((mean or layer).out.bias, old.out_proj.bias)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}


def test_a_missing_bias_is_none_in_the_joint_map_and_zero_in_the_output_map():
    old = nn.MultiheadAttention(8, 2, bias=False)
    (layer,) = replace_attention(nn.ModuleList([old]), attention=SoftmaxAttention).layers()
    assert layer.query_key_value.bias is None
    assert not layer.out.bias.any()
