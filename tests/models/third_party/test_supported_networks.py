"""The documentation's table of supported networks against tiny networks with random weights."""

import re
import warnings
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn
from torch.testing import assert_close
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import TrainOptions, fit, predict
from probattn.models import Classifier, replace_attention
from probattn.models.third_party.converted_network import call_network

PAGE = Path(__file__).parents[3] / "docs" / "third-party-networks.md"
KEP = KEPSVGPAttention.partial(rank=2)
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
EVERY = pytest.mark.parametrize("network", NETWORKS, ids=" ".join)
SOME = pytest.mark.parametrize(
    "network",
    [("Hugging Face", "DistilBERT"), ("Hugging Face", "SigLIP vision"), ("timm", "EVA"), ("timm", "CaiT")],
    ids=" ".join,
)


def build(network):
    """The network in evaluation mode, with weights so large that attention matters, and an input."""
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):  # of the libraries, about sizes this small
        built, x = NETWORKS[network]()
    for parameter in built.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.3)
    return built.eval(), x


@torch.no_grad()
def check_same_outputs(network, x, layers):
    converted = replace_attention(network, attention=SoftmaxAttention, layers=layers)
    expected = call_network(network, x, None)
    assert_close(converted(x), expected, atol=1e-5 * expected.abs().max().item(), rtol=0)
    (layer, *_) = converted.layers()
    for name, parameter in layer.named_parameters():
        if name.startswith("query_key_value"):
            parameter *= -2
    assert not torch.allclose(converted(x), expected, atol=1e-4 * expected.abs().max().item()), "the layer is not used"


def check_refused(network, x, layers):
    """At conversion, or at the call if the network passes what is not supported as an argument."""
    with pytest.raises(ValueError, match="add a transformer|leave (it|the layer) out"):
        replace_attention(network, attention=SoftmaxAttention, layers=layers)(x)


def test_the_table_lists_these_networks():
    assert TABLE.keys() == NETWORKS.keys()


@EVERY
def test_a_network_does_what_the_table_says(network):
    if network[1].startswith("BEiT without"):
        pytest.importorskip("transformers", "5.10")  # older ones pass the missing bias by position
    layers, _ = TABLE[network]
    built, x = build(network)
    if layers == "none":
        check_refused(built, x, "last")
        check_refused(built, x, "all")
    elif layers == "class attention":
        check_same_outputs(built, x, [-1])
        check_same_outputs(built, x, [-2, -1])
        check_refused(built, x, "all")
    else:
        assert layers == "all"
        check_same_outputs(built, x, "last")
        check_same_outputs(built, x, "all")


class Logits(nn.Module):
    """The means over tokens, as logits."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, mask=None):
        output = call_network(self.network, x, mask)
        return output.mean(1)[:, :3] if output.dim() == 3 else output


@SOME
def test_a_converted_network_trains_and_predicts(network):
    built, x = build(network)
    model = Classifier(replace_attention(Logits(built), attention=KEP, layers=[-1]), num_data=4).train()
    guide, batch = guides.for_model(model), (x, torch.tensor([0, 1, 2, 0]))
    fit(model, guide, [batch], options=TrainOptions(epochs=2), progress=False)
    draws = predict(model, guide, [batch], num_samples=3, keep_draws=True).draws
    assert draws.shape == (3, 4, 3)
    assert (draws[0] - draws[1]).abs().max() > 1e-8
    (layer,) = model.network.layers()
    assert layer.out.weight.grad.abs().sum() > 0


def test_distilbert_attends_over_real_tokens_only():
    built, x = build(("Hugging Face", "DistilBERT"))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]).bool()
    converted = replace_attention(built, attention=SoftmaxAttention, layers="all")
    with torch.no_grad():
        assert_close(converted(x, mask)[mask], call_network(built, x, mask)[mask], atol=1e-5, rtol=0)
        assert not torch.allclose(converted(x, mask)[1, :3], converted(x)[1, :3], atol=1e-3)
