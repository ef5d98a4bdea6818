"""Errors for modules that resemble replaceable attention, and for networks that would silently be
wrong with draws."""

import copy
import warnings

import pytest
import torch
from third_party_networks import KEP, SIZES
from torch import nn

from probattn import CGPAttention, SoftmaxAttention, draws, guides
from probattn.inference import ELBOLoss, predict
from probattn.models import Classifier, replace_attention

X, Y = torch.randn(4, 5, 8), torch.tensor([0, 1, 2, 0])
ONE = nn.ModuleList([nn.MultiheadAttention(8, 2)])


def timm_attention(**options):
    return pytest.importorskip("timm").layers.Attention(8, num_heads=2, **options)


class Scaled(nn.MultiheadAttention):
    """A user's own with queries that are scaled."""

    def __init__(self, **options):
        super().__init__(8, 2, batch_first=True, **options)
        self.factor = 2.0

    def forward(self, query, key, value):
        return super().forward(self.factor * query, key, value)


def bert(**options):
    transformers = pytest.importorskip("transformers")
    return transformers.BertModel(transformers.BertConfig(vocab_size=20, **SIZES, **options))


@pytest.mark.parametrize(
    "make",
    [
        Scaled,
        lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
        lambda: nn.MultiheadAttention(8, 2, add_zero_attn=True),
        lambda: nn.MultiheadAttention(8, 2, kdim=4),
        lambda: timm_attention(qk_norm=True, norm_layer=nn.LayerNorm),
        lambda: timm_attention(scale_norm=True, norm_layer=nn.LayerNorm),
        lambda: timm_attention(attn_head_dim=8),
        lambda: pytest.importorskip("timm").models.beit.Attention(8, 2, window_size=(2, 2)),
    ],
)
def test_what_looks_alike_is_refused_by_its_path_and_class(make):
    with pytest.raises(ValueError, match=r"'1' \([\w.]+\).*add a transformer block"):
        replace_attention(nn.Sequential(nn.Linear(8, 8), make()), attention=SoftmaxAttention)


@pytest.mark.parametrize(
    ("network", "options", "words"),
    [
        (nn.Flatten(), {}, "none"),
        (nn.MultiheadAttention(8, 2), {}, "MultiheadAttention"),
        (nn.ModuleList([nn.MultiheadAttention(8, 2)] * 2), {}, "shared"),
        (ONE, {"layers": [1]}, "out of range"),
        (ONE, {"layers": [-2]}, "out of range"),
        (ONE, {"layers": "first"}, "first"),
        (ONE, {"attention": "kepsvgp"}, "kep-svgp"),
        (ONE, {"attention": lambda *_: nn.Identity()}, "attention layers"),
    ],
)
def test_layers_out_of_range_and_factories_of_other_things_are_refused(network, options, words):
    with pytest.raises((ValueError, KeyError), match=words):
        replace_attention(network, **({"attention": KEP} | options))


def test_a_zero_output_map_hides_nothing():
    network = nn.ModuleList([Scaled()])
    for parameter in network[0].out_proj.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(ValueError, match="not the softmax attention"):
        replace_attention(network, attention=SoftmaxAttention)
    network[0].factor = 1.0
    (layer,) = replace_attention(network, attention=SoftmaxAttention).layers()
    assert not layer.out.weight.any(), "the weights that a probe has drawn are its own"


class Stem(nn.Module):
    """Runs batch norm of tokens before or after attention."""

    def __init__(self, *, first, **options):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, **options)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head, self.first = nn.Linear(8, 3), first

    def forward(self, x):
        for part in (self.normed, self.block) if self.first else (self.block, self.normed):
            x = part(x)
        return self.head(x.mean(1))

    def normed(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


def loss(network):
    model = Classifier(network, num_data=4)
    return ELBOLoss(model, guides.for_model(model))(X, Y)


def test_batch_norm_is_refused_where_it_mixes_the_draws_of_a_stochastic_layer():
    converted = replace_attention(Stem(first=False), attention=KEP)
    without = replace_attention(Stem(first=False, track_running_stats=False), attention=KEP).eval()
    for network in (converted, copy.deepcopy(converted), without):
        for number in (1, 2):
            with draws(number), pytest.raises(ValueError, match="after a stochastic layer"):
                network(X)
    model = Classifier(converted, num_data=4)
    assert (
        predict(model, guides.for_model(model), [(X, Y)], num_samples=3).probs.isfinite().all()
    ), "running statistics"
    below = replace_attention(Stem(first=True), attention=KEP)
    for network in (below, replace_attention(Stem(first=False), attention=SoftmaxAttention)):
        loss(network).backward()
    assert below.wrapped.norm.num_batches_tracked == 1, "a stem sees a batch once"


class Loop(nn.Module):
    """A block that runs twice."""

    def __init__(self):
        super().__init__()
        self.first, self.block = (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.block(self.block(self.first(x))).mean(1))


def test_a_stochastic_layer_that_blocks_share_is_refused_and_others_are_not():
    shared = replace_attention(Loop(), attention=KEP)
    with pytest.raises(ValueError, match="block.self_attn"):
        loss(shared)
    model = Classifier(shared, num_data=4).eval()
    with pytest.raises(ValueError, match="block.self_attn"):
        predict(model, guides.for_model(model), [(X, Y)], num_samples=3)
    loss(replace_attention(Loop(), attention=KEP, layers=[0])).backward()
    loss(replace_attention(Loop(), attention=SoftmaxAttention)).backward()


def switch(network, on):
    with warnings.catch_warnings(
        action="ignore", category=FutureWarning
    ):  # transformers 5 has a second name for it
        network.gradient_checkpointing_enable() if on else network.gradient_checkpointing_disable()


@pytest.mark.parametrize("attention", [KEP, CGPAttention])
def test_gradient_checkpointing_of_hugging_face_is_refused_where_it_would_draw_again(attention):
    network, x = bert(), torch.randint(20, (2, 4))
    switch(network, True)
    converted = replace_attention(network.train(), attention=attention)
    with pytest.raises(ValueError, match="checkpointing"):
        converted(x)
    with torch.no_grad():
        converted(x)
    converted.eval()(x)
    switch(converted.train().wrapped, False)
    converted(x)
    plain = replace_attention(network, attention=SoftmaxAttention)
    plain(x).square().sum().backward()
    assert plain.layers()[0].out.weight.grad.any()
