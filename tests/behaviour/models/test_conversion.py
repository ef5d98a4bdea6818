"""Networks of other libraries with our attention: trained, frozen, saved, copied, converted
again."""

import copy

import numpy as np
import pytest
import torch
from third_party_networks import KEP, NAMES, labels_of, modelled, outputs_of, third_party
from torch import nn
from torch.testing import assert_close

from probattn import KEPSVGPAttention, KernelAttention, SGPAttention, guides
from probattn.inference import (
    MCDropout,
    PosteriorPredictive,
    TrainOptions,
    fit,
    load,
    predict,
    save,
)
from probattn.models import Classifier, Supervised, replace_attention
from probattn.models.layer_factories import LAYERS

EVERY = pytest.mark.parametrize("name", NAMES)
SOME = pytest.mark.parametrize("name", ["torchvision", "tagger", "timm", "bert-eager"])


def batch_of(given):
    labels = labels_of(given)
    return (given.x, labels) if given.mask is None else (given.x, labels, given.mask)


def train(model, guide, batch, **options):
    fit(model, guide, [batch], options=TrainOptions(**({"epochs": 1} | options)), progress=False)


def drawn(model, guide, batch):
    torch.manual_seed(1)
    return predict(model, guide, [batch], num_samples=3, keep_draws=True).draws


@EVERY
def test_it_trains_predicts_is_saved_and_copied_and_leaves_the_original_alone(name, tmp_path):
    given = third_party(name, dropout=0.1)
    state = copy.deepcopy(given.network.state_dict())
    kinds = [type(module) for module in given.network.modules()]
    model, batch = modelled(given), batch_of(given)
    guide = guides.for_model(model)
    (site,) = dict(guides.latent_sites(model))
    assert site.startswith(f"network.wrapped.{given.block(2)}.")
    train(model, guide, batch, lr=1e-2)
    expected = drawn(model, guide, batch)
    assert (expected[0] - expected[1]).abs().max() > 1e-6
    assert [type(module) for module in given.network.modules()] == kinds
    assert all(torch.equal(value, state[key]) for key, value in given.network.state_dict().items())
    save(tmp_path / "model.pt", model, guide)
    again, (twin, other) = modelled(given), copy.deepcopy((model, guide))
    loaded = guides.for_model(again)
    load(tmp_path / "model.pt", again, loaded)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert torch.equal(drawn(again, loaded, batch), expected)
    assert torch.equal(drawn(twin, other, batch), expected)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", ["torchvision"])
def test_each_layer_of_ours_by_name_trains_and_predicts(name, kind):
    given = third_party(name)
    model, batch = modelled(given, attention=kind, layers=[1, -1]), batch_of(given)
    guide, layers = guides.for_model(model), model.network.layers()
    model.network.initialise_inducing(given.x, given.mask)
    train(model, guide, batch)
    assert all(type(layer) is type(LAYERS[kind].factory()(8, 2)) for layer in layers)
    assert all(parameter.isfinite().all() for layer in layers for parameter in layer.parameters())
    assert all(layer.out.weight.grad.any() for layer in layers)
    draws = drawn(model, guide, batch)
    assert ((draws[0] - draws[1]).abs().max() > 1e-8) == layers[0].is_stochastic()


@SOME
def test_a_frozen_rest_does_not_move(name):
    given = third_party(name)
    model = modelled(
        given, freeze_rest=True, attention=KEPSVGPAttention.partial(rank=2, learn_scale=False)
    )
    state = copy.deepcopy(model.state_dict())
    train(model, guides.for_model(model), batch_of(given), weight_decay=0.1)
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, state[key])}
    assert {key.rsplit(".layer.")[-1] for key in moved} >= {"query_key.weight", "out.weight"}
    assert all(".layer." in key and not key.endswith("log_scale") for key in moved)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.BatchNorm1d(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(x.mT).mT
        return self.head(self.attention(x, x, x)[0].mean(1))


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_batch_norm_has_the_same_statistics_after_training(frozen):
    converted = replace_attention(Normed(), attention=KEP, freeze_rest=frozen)
    model = Classifier(converted, num_data=6).train()
    before = converted.wrapped.norm.running_mean.clone()
    train(model, guides.for_model(model), (torch.randn(6, 4, 8), torch.arange(6) % 3))
    assert torch.equal(converted.wrapped.norm.running_mean, before) == frozen


def test_layers_are_counted_in_the_order_of_definition():
    given = third_party("torch")
    chosen = {"last": [2], "all": [0, 1, 2], (0, -1): [0, 2], (1, 1, -2): [1], range(2): [0, 1]}
    arrays = [(np.array([0, -1]), [0, 2]), (torch.tensor([1]), [1])]
    for layers, expected in (*chosen.items(), *arrays):
        converted = replace_attention(given.network, attention=KEP, layers=layers)
        sites = [site for site, _ in guides.latent_sites(Classifier(converted, num_data=4))]
        assert sites == [
            f"network.wrapped.layers.{number}.self_attn.layer.u" for number in expected
        ]


@SOME
def test_a_converted_network_that_has_run_can_be_converted_again_and_become_part_of_a_model(name):
    given, batch = third_party(name), batch_of(third_party(name))
    first = replace_attention(given.network, attention=KernelAttention, layers=[0])
    first(given.x, given.mask)
    second = replace_attention(first, attention=KEP, layers="last")
    assert [type(layer) for layer in second.layers()] == [KernelAttention, KEPSVGPAttention]
    assert len(first.layers()) == 1
    second(given.x, given.mask)
    likelihood = modelled(given).likelihood
    model = Supervised(second, likelihood, num_data=4)
    (site,) = dict(guides.latent_sites(model))
    assert site.startswith(f"network.wrapped.{given.block(2)}.")
    fresh = Supervised(copy.deepcopy(second), likelihood, num_data=4)
    guide, other = guides.for_model(model), guides.for_model(fresh)
    other.load_state_dict(guide.state_dict())
    batch = (given.x, *batch[1:])
    assert torch.equal(drawn(fresh, other, batch), drawn(model, guide, batch))


def test_the_mode_of_each_module_stays():
    given = third_party("timm", dropout=0.2)
    given.network.eval()
    assert not any(
        module.training
        for module in replace_attention(given.network, attention=KEP).wrapped.modules()
    )
    given.network.train().blocks[2].attn.proj_drop.eval()
    for network in (replace_attention(given.network, attention=KEP).wrapped, given.network):
        still = [name for name, module in network.named_modules() if not module.training]
        assert still == ["blocks.2.attn.proj_drop"]


def test_inducing_inputs_come_from_the_real_tokens_that_a_layer_sees():
    given = third_party("bert-sdpa")
    converted = replace_attention(
        given.network, attention=SGPAttention.partial(inducing=4), layers=[1, 2]
    )
    streams = []
    for layer in converted.layers():
        layer.initialise = streams.append
    converted.train().initialise_inducing(given.x, given.mask)
    hidden = given.network.eval()(
        given.x, attention_mask=given.mask.long(), output_hidden_states=True
    ).hidden_states
    assert_close(streams[0], hidden[1][given.mask])
    assert [stream.shape for stream in streams] == [(13, 8)] * 2
    assert converted.training


@EVERY
def test_dropout_draws_masks_of_their_own_for_each_draw_and_example(name):
    """Equal inputs would give equal outputs; at rate 0 the prediction is the one without
    dropout."""
    given = third_party(name, dropout=0.4)
    x = given.x[:1].repeat(4, *[1] * (given.x.dim() - 1))
    model = modelled(given).eval()
    guide, log = guides.for_model(model), outputs_of(model)
    batch = [(x, None, None if given.mask is None else torch.ones_like(given.mask))]
    predictor = PosteriorPredictive(model, guide, num_samples=3)
    MCDropout(predictor).predict(batch)
    outputs = torch.stack(log).flatten(0, 1).flatten(1)
    assert outputs.shape[0] == 12
    assert torch.pdist(outputs).min() > 1e-6
    assert not any(module.training for module in model.modules())
    torch.manual_seed(2)
    without = MCDropout(predictor, rate=0).predict(batch)
    torch.manual_seed(2)
    plain = predict(model, guide, batch, num_samples=3, vectorize=False)
    assert_close(without.probs, plain.probs, atol=1e-10, rtol=0)
