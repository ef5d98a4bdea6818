"""Small networks of other libraries, with what they are called on."""

from collections.abc import Callable
from typing import NamedTuple

import pyro.poutine as poutine
import pytest
import torch
import torchvision
from torch import nn

from probattn import KEPSVGPAttention, draws, guides, local_posteriors
from probattn.inference.prediction.latents import global_part, run_guide
from probattn.models import Classifier, Supervised, replace_attention
from probattn.models.likelihoods import TokenCategorical

SIZES = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
NAMES = ("torchvision", "torch", "torch-second", "tagger", "timm", "bert-sdpa", "bert-eager", "vit-sdpa", "vit-eager")
MASKED = ("torch", "torch-second", "tagger", "bert-sdpa", "bert-eager")


class ThirdParty(NamedTuple):
    network: nn.Module
    x: torch.Tensor  # (4, ...)
    mask: torch.Tensor | None  # (4, tokens)
    original: Callable  # network, x, mask → what a converted network should give
    block: Callable  # number → the path of that block


class Tagger(nn.Module):
    """A user's own: embedding, encoder with its batch second, head."""

    def __init__(self, dropout):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x, mask=None):
        padding = None if mask is None else ~mask
        return self.head(self.encoder(self.embed(x).transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1))


def encoder(dropout, batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=batch_first)


def call_encoder(network, x, mask):
    padding = None if mask is None else ~mask
    if network.layers[0].self_attn.batch_first:
        return network(x, src_key_padding_mask=padding)
    return network(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)


def build(name, dropout):
    library, _, kind = name.partition("-")
    images, tokens, ids = torch.randn(4, 3, 8, 8), torch.randn(4, 5, 8), torch.randint(20, (4, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool)
    if library == "torchvision":
        network = torchvision.models.VisionTransformer(8, 4, 3, 2, 8, 16, dropout, dropout, num_classes=3)
        nn.init.normal_(network.heads.head.weight)
        path = "encoder.layers.encoder_layer_{}".format
        return ThirdParty(network, images, None, lambda network, x, mask: network(x), path)
    if library == "torch":
        return ThirdParty(encoder(dropout, kind != "second"), tokens, mask, call_encoder, "layers.{}".format)
    if library == "tagger":
        return ThirdParty(Tagger(dropout), ids, mask, lambda network, *args: network(*args), "encoder.layers.{}".format)
    if library == "timm":
        timm = pytest.importorskip("timm")
        rates = {"pos_drop_rate": dropout, "proj_drop_rate": dropout, "attn_drop_rate": dropout}
        network = timm.models.VisionTransformer(8, 4, embed_dim=8, depth=3, num_heads=2, num_classes=3, **rates)
        nn.init.normal_(network.head.weight)
        return ThirdParty(network, images, None, lambda network, x, mask: network(x), "blocks.{}".format)
    transformers = pytest.importorskip("transformers")
    options = SIZES | {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "num_labels": 3}
    options["attn_implementation"] = kind
    if library == "bert":
        config = transformers.BertConfig(vocab_size=20, max_position_embeddings=12, **options)
        network = transformers.BertForSequenceClassification(config)
        nn.init.normal_(network.classifier.weight)
        return ThirdParty(network, ids, mask, call_bert, "bert.encoder.layer.{}".format)
    network = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=8, patch_size=4, **options))
    nn.init.normal_(network.classifier.weight)
    layers = next(path for path, module in network.named_modules() if isinstance(module, nn.ModuleList))
    return ThirdParty(network, images, None, lambda network, x, mask: network(x).logits, f"{layers}.{{}}".format)


def call_bert(network, x, mask):
    return network(x, attention_mask=None if mask is None else mask.long()).logits


@pytest.fixture
def third_party():
    """Builds a network by name, in float64, with weights and biases so large that attention matters."""

    def make(name, *, dropout=0.0):
        made = build(name, dropout)
        for path, parameter in made.network.named_parameters():
            if path.endswith("bias") or parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.4)
        x = made.x.double() if made.x.is_floating_point() else made.x
        return made._replace(network=made.network.double(), x=x)

    return make


KEP = KEPSVGPAttention.partial(rank=2)


def _modelled(given, **options):
    likelihood = TokenCategorical() if given.original(given.network, given.x, None).dim() == 3 else None
    converted = replace_attention(given.network, **({"attention": KEP} | options))
    if likelihood is None:
        return Classifier(converted, num_data=4)
    return Supervised(converted, likelihood, num_data=4)


def _outputs_of(model):
    """A list to which the network's output at each call is added."""
    log = []
    model.network.register_forward_hook(lambda module, args, output: log.append(output))
    return log


def _run(model, number, x, mask):
    """The trace of one pass under that many draws."""
    model.eval()
    with torch.no_grad(), draws(number):
        latents = global_part(run_guide(model, guides.for_model(model), (x, None, mask)))
        with local_posteriors():
            return poutine.trace(poutine.replay(model, trace=latents)).get_trace(x, None, mask)


def _latents(trace):
    found = {name: node for name, node in trace.nodes.items() if node["type"] == "sample" and name != "y"}
    return {name: node for name, node in found.items() if not node["is_observed"] or node["infer"].get("drawn")}


@pytest.fixture
def modelled():
    return _modelled


@pytest.fixture
def outputs_of():
    return _outputs_of


@pytest.fixture
def run():
    return _run


@pytest.fixture
def latents():
    return _latents


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", NAMES)
    if "masked_name" in metafunc.fixturenames:
        metafunc.parametrize("masked_name", MASKED)
