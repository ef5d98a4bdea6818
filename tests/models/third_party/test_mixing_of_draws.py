"""Operations that converted networks may not use, and similar ones that they may."""

import copy
import warnings

import pytest
import torch
from elbos import TraceMeanField_ELBO
from torch import nn

from probattn import CGPAttention, KEPSVGPAttention, SoftmaxAttention, draws, guides
from probattn.inference import predict
from probattn.models import Classifier, replace_attention

KEP = KEPSVGPAttention.partial(rank=2)
X, Y = torch.randn(4, 5, 8), torch.tensor([0, 1, 2, 0])


class Stem(nn.Module):
    """Defined in one order and run in the other, if a test says so: batch norm of tokens, and attention."""

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
    return TraceMeanField_ELBO()(model, guides.for_model(model))(X, Y)


def test_batch_norm_is_refused_where_it_runs_behind_a_stochastic_layer():
    for network in (converted := replace_attention(Stem(first=False), attention=KEP), copy.deepcopy(converted)):
        for _ in range(2):
            with pytest.raises(ValueError, match="BatchNorm1d runs after a stochastic layer"):
                network(X)
        with draws(2), pytest.raises(ValueError, match="runs after a stochastic layer"):
            network(X)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in converted.modules())


def test_batch_norm_below_stochastic_layers_and_behind_others_is_no_hindrance():
    for network, attention in ((Stem(first=True), KEP), (Stem(first=False), SoftmaxAttention)):
        converted = replace_attention(network, attention=attention)
        for _ in range(2):
            assert converted(X).isfinite().all()
            loss(copy.deepcopy(converted)).backward()


def test_batch_norm_in_evaluation_is_an_affine_map_unless_it_keeps_no_statistics():
    converted = replace_attention(Stem(first=False), attention=KEP)
    model = Classifier(converted, num_data=4)
    assert predict(model, guides.for_model(model), [(X, Y)], num_samples=3).probs.isfinite().all()
    converted.wrapped.norm.eval()
    converted(X)
    without = replace_attention(Stem(first=False, track_running_stats=False), attention=KEP).eval()
    with pytest.raises(ValueError, match="runs after a stochastic layer"):
        without(X)


class Loop(nn.Module):
    """A block that runs twice."""

    def __init__(self):
        super().__init__()
        self.first, self.block = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.block(self.block(self.first(x))).mean(1))


def test_a_stochastic_layer_that_blocks_share_is_refused_and_others_are_not():
    shared = replace_attention(Loop(), attention=KEP)
    with pytest.raises(ValueError, match="block.self_attn"):
        loss(shared)
    for mode in (True, False):
        model = Classifier(shared, num_data=4).train(mode)
        with pytest.raises(ValueError, match="block.self_attn"):
            predict(model, guides.for_model(model), [(X, Y)], num_samples=3)
    loss(replace_attention(Loop(), attention=KEP, layers=[0])).backward()
    loss(replace_attention(Loop(), attention=SoftmaxAttention)).backward()


def bert():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes)), torch.randint(20, (2, 4))


def switch(network, on):
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # transformers 5 has a second name for it
        network.gradient_checkpointing_enable() if on else network.gradient_checkpointing_disable()


@pytest.mark.parametrize("attention", [KEP, CGPAttention])
def test_gradient_checkpointing_of_hugging_face_is_refused_where_it_would_draw_again(attention):
    network, x = bert()
    converted = replace_attention(network, attention=attention)
    switch(converted.wrapped, True)
    with pytest.raises(ValueError, match="gradient checkpointing"):
        converted(x)
    with torch.no_grad():
        converted(x)
    converted.eval()(x)
    switch(converted.train().wrapped, False)
    converted(x)


def test_gradient_checkpointing_of_timm_is_refused_in_either_mode():
    timm = pytest.importorskip("timm")
    network = timm.models.VisionTransformer(8, 4, embed_dim=8, depth=2, num_heads=2, num_classes=3)
    converted, x = replace_attention(network, attention=KEP), torch.randn(2, 3, 8, 8)
    converted.wrapped.set_grad_checkpointing()
    for training in (True, False):
        converted.train(training)
        with pytest.raises(ValueError, match="gradient checkpointing"):
            converted(x)
    with torch.no_grad():
        converted(x)


def test_gradient_checkpointing_of_what_draws_nothing_is_as_it_was():
    network, x = bert()
    switch(network, True)
    converted = replace_attention(network, attention=SoftmaxAttention)
    converted(x).square().sum().backward()
    assert converted.layers()[0].out.weight.grad.any()
