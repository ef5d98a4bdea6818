"""Calls of attention layers by other libraries, and networks whose outputs come in several
forms."""

from collections import namedtuple

import pytest
import torch
from third_party_networks import KEP
from torch import nn
from torch.testing import assert_close

from probattn import SoftmaxAttention, guides
from probattn.inference import ELBOLoss, predict
from probattn.models import Classifier, replace_attention
from probattn.models.third_party.adapters import (
    Adapter,
    MultiheadAttentionAdapter,
    token_mask,
)

REAL = torch.tensor([[True, True, False], [True, True, True]])
ADDED = torch.tensor([[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]])
X, Y = torch.randn(4, 5, 8), torch.tensor([0, 1, 1, 0])


@pytest.mark.parametrize(
    "mask",
    [
        REAL,
        REAL.long(),
        ADDED,
        REAL[:, None, None].expand(2, 1, 3, 3),
        ADDED[:, None, None].expand(2, 4, 3, 3),
        ADDED[:, None, None].clamp(min=-1e4),
    ],
)
def test_every_form_of_padding_is_the_mask_of_tokens(mask):
    assert torch.equal(token_mask(mask, torch.zeros(2, 3, 4)), REAL)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(3, 3).tril().bool()[None, None], "queries or heads"),
        (torch.tensor([0.0, -1.0, 0.0]).expand(2, 1, 1, 3), "adds numbers"),
        (torch.tensor([0.0, torch.nan, 0.0]).expand(2, 1, 1, 3), "adds numbers"),
    ],
)
def test_more_than_padding_is_refused(mask, words):
    with pytest.raises(ValueError, match=words):
        token_mask(mask, torch.zeros(2, 3, 4))


@pytest.fixture
def layer():
    return SoftmaxAttention(4, 2)


@pytest.fixture
def x():
    return torch.randn(2, 3, 4)


OTHER = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (MultiheadAttentionAdapter, {"key": OTHER}, "cross-attention"),
        (MultiheadAttentionAdapter, {"value": OTHER}, "cross-attention"),
        (MultiheadAttentionAdapter, {"attn_mask": torch.zeros(3, 3)}, "attn_mask"),
        (MultiheadAttentionAdapter, {"is_causal": True}, "is_causal"),
        (MultiheadAttentionAdapter, {"key_padding_mask": torch.full((2, 3), 0.5)}, "adds numbers"),
        (Adapter, {"encoder_hidden_states": OTHER}, "encoder_hidden_states"),
        (Adapter, {"is_causal": True}, "is_causal"),
        (Adapter, {"scaling": 0.0}, "scaling"),
    ],
)
def test_what_a_library_may_ask_for_and_we_lack_is_refused(layer, x, kind, options, words):
    tokens = {"hidden_states": x} if kind is Adapter else {"query": x, "key": x, "value": x}
    with pytest.raises(ValueError, match=words):
        kind(layer, nn.Identity())(**(tokens | options))


class Network(nn.Module):
    """Returns features of 16 dimensions and 2 logits in a form that a test says."""

    def __init__(self, form):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.features, self.head, self.form = nn.Linear(8, 16), nn.Linear(16, 2), form

    def forward(self, x):
        features = self.features(self.block(x).mean(1))
        return self.form(features, self.head(features))


@pytest.mark.parametrize(
    "form",
    [
        lambda features, logits: (logits, None),
        lambda features, logits: {"scores": logits},
        lambda features, logits: {"features": features, "logits": logits},
        namedtuple("Named", ("features", "logits")),
    ],
)
def test_logits_and_the_only_tensor_are_the_output(form):
    network = Network(form)
    expected = Network(lambda features, logits: logits)
    expected.load_state_dict(network.state_dict())
    assert_close(replace_attention(network, attention=SoftmaxAttention)(X), expected(X))
    model = Classifier(replace_attention(network, attention=KEP), num_data=4)
    guide = guides.for_model(model)
    ELBOLoss(model, guide)(X, Y).backward()
    assert model.network.wrapped.head.weight.grad.any()
    assert predict(model, guide, [(X, Y)], num_samples=3).probs.shape == (4, 2)


@pytest.mark.parametrize(
    "form",
    [
        lambda features, logits: (features, logits),
        lambda features, logits: {"features": features, "scores": logits},
    ],
)
def test_several_outputs_without_that_name_are_refused(form):
    model = Classifier(replace_attention(Network(form), attention=KEP), num_data=4)
    for call in (
        model.network,
        lambda x: predict(model, guides.for_model(model), [(x, Y)], num_samples=3),
    ):
        with pytest.raises(TypeError, match="logits"):
            call(X)
