"""Networks of other libraries with our attention: what they compute, what is kept, what is refused."""

import copy

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.testing import assert_close

from probattn import (
    AnchoredAttention,
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    guides,
)
from probattn.inference import TrainOptions, fit, load, predict, save
from probattn.models import Classifier, Supervised, replace_attention
from probattn.models.likelihoods import TokenCategorical
from probattn.models.third_party.adapters import Adapter

KEP = KEPSVGPAttention.partial(rank=2)
KINDS = {
    "softmax": SoftmaxAttention,
    "kernel": KernelAttention,
    "kep-svgp": KEP,
    "sgpa": SGPAttention.partial(inducing=3),
    "sgpa-standard": SGPAttention.partial(inducing=None),
    "cgp": CGPAttention,
    "sparse-cgp": SparseCGPAttention.partial(inducing=3),
    "anchored": AnchoredAttention.partial(anchors=3),
}
NESTED = "ignore:The PyTorch API of nested tensors"


def model_of(third_party, **options):
    options = {"attention": KEP} | options
    converted = replace_attention(third_party.network, **options)
    outputs = third_party.original(third_party.network, third_party.x, None)
    if outputs.dim() == 2:
        return Classifier(converted, num_data=4), torch.tensor([0, 1, 2, 0])
    return Supervised(converted, TokenCategorical(), num_data=4), torch.arange(20).view(4, 5) % 3


def batch_of(third_party, y):
    return (third_party.x, y) if third_party.mask is None else (third_party.x, y, third_party.mask)


def probs(model, guide, batch):
    torch.manual_seed(1)
    return predict(model, guide, [batch], num_samples=3, keep_draws=True).draws


@pytest.mark.filterwarnings(NESTED)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layers", ["last", "all", [0]])
def test_softmax_attention_reproduces_the_original(third_party, name, layers, training):
    given = third_party(name)
    given.network.train(training)
    converted = replace_attention(given.network, attention=SoftmaxAttention, layers=layers)
    assert sum(isinstance(module, SoftmaxAttention) for module in converted.modules()) == (3 if layers == "all" else 1)
    for mask in (None, given.mask):
        with torch.no_grad():
            expected, actual = given.original(given.network, given.x, mask), converted(given.x, mask)
        if mask is not None and actual.dim() == 3:
            expected, actual = expected[mask], actual[mask]
        assert_close(actual, expected, atol=1e-6 if name == "vit-eager" else 1e-10, rtol=0)


def test_trains_and_predicts_and_leaves_the_original_alone(third_party, name):
    given = third_party(name, dropout=0.1)
    state, kinds = copy.deepcopy(given.network.state_dict()), [type(module) for module in given.network.modules()]
    model, y = model_of(given)
    guide = guides.for_model(model)
    (site,) = dict(guides.latent_sites(model))
    assert site.startswith(f"network.wrapped.{given.block(2)}.")
    assert site.endswith(".layer.u")
    before = copy.deepcopy(model.state_dict())
    for training in (True, False):
        model.train(training)
        history = fit(model, guide, [batch_of(given, y)], options=TrainOptions(epochs=2, lr=1e-2), progress=False)
        assert len(history.epochs) == 2
        draws = probs(model, guide, batch_of(given, y))
        assert draws.shape[:2] == (3, 4)
        assert (draws[0] - draws[1]).abs().max() > 1e-6
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [type(module) for module in given.network.modules()] == kinds
    for key, value in given.network.state_dict().items():
        assert torch.equal(value, state[key]), key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["torchvision", "tagger", "bert-sdpa"])
def test_each_layer_of_ours_trains_and_predicts(third_party, which, kind):
    given = third_party(which)
    model, y = model_of(given, attention=KINDS[kind], layers=[1, -1])
    guide, batch = guides.for_model(model), batch_of(given, y)
    model.network.initialise_inducing(given.x, given.mask)
    fit(model, guide, [batch], options=TrainOptions(epochs=2), progress=False)
    for layer in model.network.layers():
        assert all(parameter.isfinite().all() for parameter in layer.parameters())
        assert layer.out.weight.grad.abs().sum() > 0
    draws = probs(model, guide, batch)
    stochastic = kind not in ("softmax", "kernel", "anchored")
    assert ((draws[0] - draws[1]).abs().max() > 1e-8) == stochastic


@pytest.mark.slow
def test_vit_b_16_converted_trained_and_predicted():
    network = torchvision.models.vit_b_16(weights=None, image_size=32, num_classes=3)
    nn.init.normal_(network.heads.head.weight, std=0.1)
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 2])
    for training in (True, False):
        network.train(training)
        softmax = replace_attention(network, attention=SoftmaxAttention)
        with torch.no_grad():
            assert_close(softmax(images), network(images), atol=1e-5, rtol=0)
    model = Classifier(
        replace_attention(network, attention=KEPSVGPAttention.partial(rank=8), freeze_rest=True), num_data=2
    )
    guide = guides.for_model(model)
    assert list(dict(guides.latent_sites(model))) == [
        "network.wrapped.encoder.layers.encoder_layer_11.self_attention.layer.u"
    ]
    fit(model, guide, [(images, labels)], options=TrainOptions(epochs=2), progress=False)
    for training in (True, False):
        model.train(training)
        draws = probs(model, guide, (images, labels))
        assert draws.shape == (3, 2, 3)
        assert_close(draws.sum(-1), torch.ones(3, 2))
        assert (draws[0] - draws[1]).abs().max() > 1e-6


def test_a_frozen_rest_does_not_move(third_party, name):
    given = third_party(name)
    model, y = model_of(given, freeze_rest=True, attention=KEPSVGPAttention.partial(rank=2, learn_scale=False))
    state = copy.deepcopy(model.state_dict())
    fit(
        model,
        guides.for_model(model),
        [batch_of(given, y)],
        options=TrainOptions(epochs=2, weight_decay=0.1),
        progress=False,
    )
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, state[key])}
    assert moved
    assert all(".layer." in key for key in moved)
    trained = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any(key.endswith("log_scale") for key in trained)
    assert {key.rsplit(".layer.")[-1] for key in trained} >= {"query_key.weight", "out.weight"}


def test_frozen_batch_norm_keeps_its_statistics():
    """Also after model.train(), which users call before training; without freezing it updates them."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.attention = nn.BatchNorm1d(8), nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            x = self.norm(x.mT).mT
            return self.head(self.attention(x, x, x)[0].mean(1))

    for frozen in (True, False):
        converted = replace_attention(Network(), attention=KEPSVGPAttention.partial(rank=2), freeze_rest=frozen)
        model = Classifier(converted, num_data=6).train()
        before = copy.deepcopy(converted.wrapped.norm.state_dict())
        fit(
            model,
            guides.for_model(model),
            [(torch.randn(6, 4, 8), torch.arange(6) % 3)],
            options=TrainOptions(epochs=2),
            progress=False,
        )
        after = converted.wrapped.norm.state_dict()
        assert [torch.equal(after[name], value) for name, value in before.items()] == [frozen] * 5
        assert converted.training
        assert converted.wrapped.norm.training != frozen


def test_saved_and_loaded(third_party, name, tmp_path):
    given = third_party(name)
    model, y = model_of(given)
    guide = guides.for_model(model)
    fit(model, guide, [batch_of(given, y)], options=TrainOptions(epochs=1), progress=False)
    save(tmp_path / "model.pt", model, guide)
    again, _ = model_of(given)
    other = guides.for_model(again)
    load(tmp_path / "model.pt", again, other)
    batch = batch_of(given, y)
    assert torch.equal(probs(again, other, batch), probs(model, guide, batch))


def test_copied_with_its_guide(third_party, name):
    given = third_party(name)
    model, y = model_of(given)
    guide, batch = guides.for_model(model), batch_of(given, y)
    expected = probs(model, guide, batch)
    again, other = copy.deepcopy((model, guide))
    for parameter in model.parameters():
        parameter.data.zero_()
    assert torch.equal(probs(again, other, batch), expected)


def test_layers_are_counted_in_the_order_of_definition(third_party):
    given = third_party("torch")
    chosen = {"last": [2], "all": [0, 1, 2], (0, -1): [0, 2], (1, 1, -2): [1], range(2): [0, 1]}
    arrays = [(np.array([0, -1]), [0, 2]), (torch.tensor([1]), [1]), ([np.int64(0), 2], [0, 2])]
    for layers, expected in (*chosen.items(), *arrays):
        converted = replace_attention(given.network, attention=KEP, layers=layers)
        paths = [path for path, module in converted.named_modules() if isinstance(module, Adapter)]
        assert paths == [f"wrapped.layers.{number}.self_attn" for number in expected]


def test_modules_keep_their_order():
    class Attending(nn.MultiheadAttention):
        def forward(self, x):
            return super().forward(x, x, x)[0]

    network = nn.Sequential(nn.LayerNorm(8), Attending(8, 2), nn.Linear(8, 8), Attending(8, 2), nn.LayerNorm(8))
    with pytest.raises(ValueError, match=r"'1' \(\S+\.Attending\) cannot be replaced"):
        replace_attention(network, attention=KEP, layers=[0])
    network[1], network[3] = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2)
    converted = replace_attention(network, attention=KEP, layers="all")
    assert list(converted.wrapped._modules) == ["0", "1", "2", "3", "4"]
    again = replace_attention(replace_attention(network, attention=KEP, layers=[1]), attention=KEP)
    assert list(again.wrapped._modules) == ["0", "1", "2", "3", "4"]
    assert len(again.layers()) == 2


def test_other_layers_can_be_replaced_later(third_party):
    given = third_party("torch")
    first = replace_attention(given.network, attention=KernelAttention, layers=[0])
    second = replace_attention(first, attention=KEP, layers="last")
    assert [type(layer) for layer in second.layers()] == [KernelAttention, KEPSVGPAttention]
    assert len(first.layers()) == 1


def test_a_converted_network_that_has_run_can_be_converted_again(third_party, name):
    given = third_party(name)
    first = replace_attention(given.network, attention=KEP, layers=[0])
    given = given._replace(network=first, original=lambda network, x, mask: network(x, mask))
    for numbers in ((0, 2), (0, 1, 2)):
        given.network(given.x, given.mask)
        model, y = model_of(given)
        for site, number in zip(dict(guides.latent_sites(model)), numbers, strict=True):
            assert site.startswith(f"network.wrapped.{given.block(number)}.")
        assert probs(model, guides.for_model(model), batch_of(given, y)).isfinite().all()
        given = given._replace(network=model.network)


def test_a_network_that_has_run_on_its_own_becomes_part_of_a_model(third_party, name):
    given = third_party(name)
    model, y = model_of(given)
    converted = replace_attention(given.network, attention=KEP)
    converted.load_state_dict(model.network.state_dict())
    converted(given.x, given.mask)
    looked_at = Supervised(converted, model.likelihood, num_data=4)
    assert [*dict(guides.latent_sites(looked_at))] == [*dict(guides.latent_sites(model))]
    guide, other = guides.for_model(model), guides.for_model(looked_at)
    other.load_state_dict(guide.state_dict())
    assert torch.equal(probs(looked_at, other, batch_of(given, y)), probs(model, guide, batch_of(given, y)))


def test_training_mode_is_kept(third_party):
    given = third_party("timm", dropout=0.2)
    given.network.eval()
    converted = replace_attention(given.network, attention=SoftmaxAttention)
    assert not any(module.training for module in converted.wrapped.modules())
    given.network.train()
    given.network.blocks[2].attn.proj_drop.eval()
    converted = replace_attention(given.network, attention=SoftmaxAttention)
    assert [name for name, module in converted.wrapped.named_modules() if not module.training] == [
        "blocks.2.attn.proj_drop"
    ]
    assert [name for name, module in given.network.named_modules() if not module.training] == [
        "blocks.2.attn.proj_drop"
    ]


def test_inducing_inputs_come_from_the_real_tokens_that_a_layer_sees(third_party):
    given = third_party("bert-sdpa")
    converted = replace_attention(given.network, attention=SGPAttention.partial(inducing=4), layers=[1, 2])
    streams = []
    for layer in converted.layers():
        layer.initialise = streams.append
    seen = []
    for layer in converted.layers():
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    converted.train()
    Classifier(converted, num_data=4).network.initialise_inducing(given.x, given.mask)
    assert [stream.shape for stream in streams] == [(13, 8)] * 2
    for stream, x in zip(streams, seen, strict=True):
        assert torch.equal(stream, x[given.mask])
    hidden = given.network.eval()(given.x, attention_mask=given.mask.long(), output_hidden_states=True).hidden_states
    assert_close(streams[0], hidden[1][given.mask])
    assert converted.training


ONE = nn.ModuleList([nn.MultiheadAttention(8, 2)])


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (nn.MultiheadAttention(8, 2), {}, "'' .*MultiheadAttention.* cannot be replaced"),
        (nn.ModuleList([nn.MultiheadAttention(8, 2)] * 2), {}, "shared by several blocks"),
        (ONE, {"layers": [1]}, "out of range.* 1 attention"),
        (ONE, {"layers": [-2]}, "out of range"),
        (ONE, {"layers": np.array([1])}, "out of range"),
        (ONE, {"layers": "first"}, "first"),
        (ONE, {"attention": lambda *_: nn.Identity()}, "must build attention layers"),
    ],
)
def test_refused_by_name(network, options, message):
    with pytest.raises((ValueError, KeyError), match=message):
        replace_attention(network, **({"attention": KEP} | options))


def test_attention_between_channels_is_refused():
    timm = pytest.importorskip("timm")
    options = {"num_heads": (1, 1, 1, 1), "depths": (1, 1, 1, 1), "embed_dims": (8, 8, 8, 8)}
    with pytest.raises(ValueError, match="ChannelAttention"):
        replace_attention(timm.create_model("davit_tiny", **options), attention=KEP, layers="all")
