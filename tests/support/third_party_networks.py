"""Small networks of other libraries, with what they are called on."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torchvision
from torch import nn

from probattn import KEPSVGPAttention
from probattn.models import Supervised, replace_attention
from probattn.models.likelihoods import Categorical, TokenCategorical

SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
NAMES = (
    "torchvision",
    "torch",
    "torch-second",
    "tagger",
    "timm",
    "bert-sdpa",
    "bert-eager",
    "vit-sdpa",
)
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
        return self.head(
            self.encoder(self.embed(x).transpose(0, 1), src_key_padding_mask=padding).transpose(
                0, 1
            )
        )


def encoder(dropout, batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=batch_first)


def call_encoder(network, x, mask):
    padding = None if mask is None else ~mask
    if network.layers[0].self_attn.batch_first:
        return network(x, src_key_padding_mask=padding)
    return network(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)


def plain(network, x, mask):
    return network(x)


def build(name, dropout):
    library, _, kind = name.partition("-")
    images, tokens, ids = torch.randn(4, 3, 8, 8), torch.randn(4, 5, 8), torch.randint(20, (4, 5))
    mask = torch.tensor(
        [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool
    )
    if library == "torchvision":
        network = torchvision.models.VisionTransformer(
            8, 4, 3, 2, 8, 16, dropout, dropout, num_classes=3
        )
        nn.init.normal_(network.heads.head.weight)
        path = "encoder.layers.encoder_layer_{}".format
        return ThirdParty(network, images, None, plain, path)
    if library == "torch":
        return ThirdParty(
            encoder(dropout, kind != "second"), tokens, mask, call_encoder, "layers.{}".format
        )
    if library == "tagger":
        return ThirdParty(Tagger(dropout), ids, mask, Tagger.__call__, "encoder.layers.{}".format)
    if library == "timm":
        timm = pytest.importorskip("timm")
        rates = {"pos_drop_rate": dropout, "proj_drop_rate": dropout, "attn_drop_rate": dropout}
        network = timm.models.VisionTransformer(
            8, 4, embed_dim=8, depth=3, num_heads=2, num_classes=3, **rates
        )
        nn.init.normal_(network.head.weight)
        return ThirdParty(network, images, None, plain, "blocks.{}".format)
    transformers = pytest.importorskip("transformers")
    options = SIZES | {
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "num_labels": 3,
    }
    options["attn_implementation"] = kind
    if library == "bert":
        config = transformers.BertConfig(vocab_size=20, max_position_embeddings=12, **options)
        network = transformers.BertForSequenceClassification(config)
        nn.init.normal_(network.classifier.weight)
        return ThirdParty(network, ids, mask, call_bert, "bert.encoder.layer.{}".format)
    network = transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=8, patch_size=4, **options)
    )
    nn.init.normal_(network.classifier.weight)
    layers = next(
        path for path, module in network.named_modules() if isinstance(module, nn.ModuleList)
    )
    return ThirdParty(
        network, images, None, lambda network, x, mask: network(x).logits, f"{layers}.{{}}".format
    )


def call_bert(network, x, mask):
    return network(x, attention_mask=None if mask is None else mask.long()).logits


def third_party(name, *, dropout=0.0):
    """A network by name, in float64, with weights and biases so large that attention matters."""
    made = build(name, dropout)
    for path, parameter in made.network.named_parameters():
        if path.endswith("bias") or parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.4)
    x = made.x.double() if made.x.is_floating_point() else made.x
    return made._replace(network=made.network.double(), x=x)


KEP = KEPSVGPAttention.partial(rank=2)


def modelled(given, **options):
    """A model of the converted network; of labels per token where the network has outputs for
    them."""
    converted = replace_attention(given.network, **({"attention": KEP} | options))
    by_token = given.original(given.network, given.x, None).dim() == 3
    return Supervised(converted, TokenCategorical() if by_token else Categorical(), num_data=4)


def labels_of(given):
    """Labels of the examples, or of their tokens."""
    return (
        torch.arange(given.original(given.network, given.x, None)[..., 0].numel())
        .view(4, -1)
        .squeeze(-1)
        % 3
    )


def outputs_of(model):
    """A list to which the network's output at each call is added."""
    log = []
    model.network.register_forward_hook(lambda module, args, output: log.append(output))
    return log
