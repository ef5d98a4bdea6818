"""Monte Carlo dropout against closed forms and the deterministic prediction, and the context manager of its masks."""

import math

import pyro
import pyro.poutine as poutine
import pytest
import torch
from dropout_networks import F64, chain, images, inputs, outputs, vit
from fitted_methods import mc_dropout
from pyro.infer.autoguide import AutoNormal
from torch import nn

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    SGPAttention,
    SoftmaxAttention,
    draws,
    guides,
    local_posteriors,
)
from probattn.inference import materialise, predict
from probattn.inference.methods.mc_dropout import active_dropout
from probattn.models import Classifier, Supervised, TextTransformer, replace_attention
from probattn.models.likelihoods import Gaussian

KEP = KEPSVGPAttention.partial(rank=2)


def seeded(predictor, data, seed=3):
    torch.manual_seed(seed)
    return predictor(data)


def fields(result):
    return {name: getattr(result, name) for name in ("probs", "expected_entropy", "energy")}


@pytest.mark.parametrize("attention", [SoftmaxAttention, KEP, SGPAttention.partial(inducing=3), CGPAttention])
def test_rate_zero_is_the_prediction_without_dropout_bit_for_bit(attention):
    model, guide = vit(attention)
    model.train()
    data = [(images(), torch.tensor([0, 1, 2, 0])), (images(3), torch.tensor([2, 0, 1]))]
    ours = seeded(mc_dropout(model, guide, num_samples=5, rate=0).predict, data)
    plain = seeded(lambda data: predict(model, guide, data, num_samples=5, vectorize=False), data)
    for name, value in fields(plain).items():
        assert torch.equal(getattr(ours, name), value), name
    assert not torch.allclose(seeded(mc_dropout(model, guide, num_samples=5).predict, data).probs, plain.probs)


def test_a_linear_networks_logits_have_the_moments_of_the_closed_form():
    """Dropout of the inputs x_j: mean w·x + b, covariance p/(1−p) Σ_j x_j² w_cj w_dj between logits."""
    model, _ = chain(nn.Dropout(0.3), nn.Linear(4, 3))
    x, log = torch.randn(2, 4, dtype=F64), outputs(model.network[1])
    number = 4000
    mc_dropout(model, None, num_samples=number).predict(x)
    logits = torch.stack(log)
    assert logits.shape == (number, 2, 3)
    weight, bias = model.network[1].weight.detach(), model.network[1].bias.detach()
    for i in range(2):
        covariance = 0.3 / 0.7 * (weight * x[i].square()) @ weight.T
        deviation = logits[:, i].mean(0) - (weight @ x[i] + bias)
        assert (deviation.abs() < 5 * (covariance.diagonal() / number).sqrt()).all()
        centred = logits[:, i] - (weight @ x[i] + bias)
        products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
        error = products.std(0) / number**0.5
        assert ((products.mean(0) - covariance).abs() < 5 * error).all()


def test_attention_dropout_is_one_of_them():
    """With values of 1, an output is the sum of those attention probabilities that are kept, times two."""
    model, _ = chain(SoftmaxAttention(4, 2, dropout=0.5), nn.Flatten(-2), nn.Linear(12, 3))
    layer = model.network[0]
    with torch.no_grad():
        layer.query_key_value.weight[8:] = 0.0
        layer.query_key_value.weight[8:, 0] = 1.0
        layer.out.weight.copy_(torch.eye(4))
        layer.out.bias.zero_()
    log = outputs(layer)
    x = torch.randn(2, 3, 4, dtype=F64)
    x[..., 0] = 1.0
    mc_dropout(model, None, num_samples=2000).predict(x)
    sums = torch.stack(log)[..., 0]
    variance = layer.attention_matrix(x)[:, 0].detach().square().sum(-1)  # p / (1 − p) Σ_j a_j²
    assert sums.shape == (2000, 2, 3)
    assert ((sums.mean(0) - 1).abs() < 5 * (variance / 2000).sqrt()).all()
    torch.testing.assert_close(sums.var(0), variance, rtol=0.2, atol=0)


def test_the_mean_is_over_the_samples_softmax():
    model, _ = chain(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    x, log = torch.randn(6, 4, dtype=F64), outputs(model.network[2])
    result = mc_dropout(model, None, num_samples=7).predict(x)
    logits = torch.stack(log)
    probs = logits.softmax(-1)
    torch.testing.assert_close(result.probs, probs.mean(0))
    torch.testing.assert_close(result.expected_entropy, -(probs * probs.log()).sum(-1).mean(0))
    torch.testing.assert_close(result.energy, -logits.exp().sum(-1).log().mean(0))
    assert (result.mutual_information > 1e-4).all()


def test_masks_differ_between_samples_and_between_examples():
    model, _ = chain(nn.Dropout(0.5), nn.Linear(16, 3))
    log = inputs(model.network[1])
    mc_dropout(model, None, num_samples=6).predict(torch.ones(5, 16, dtype=F64))
    dropped = torch.stack(log)
    assert dropped.shape == (6, 5, 16)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert len(dropped.flatten(0, 1).unique(dim=0)) == 30


def test_samples_differ_in_masks_below_the_stochastic_layer_and_in_its_latent_values():
    model, guide = vit(KEP, depth=2, dropout=0.4)
    layer = model.network.blocks[1].attention
    x, seen = inputs(layer), outputs(layer)
    mc_dropout(model, guide, num_samples=4).predict(images(3))
    assert len({tuple(value.flatten().tolist()) for value in x}) == 4
    assert len(seen) == 4
    model.network.apply(lambda module: setattr(module, "p", 0.0) if isinstance(module, nn.Dropout) else None)
    model.network.blocks[1].mlp[2].p = 0.4  # above the layer, whose outputs then differ by their latent values alone
    x.clear(), seen.clear()
    mc_dropout(model, guide, num_samples=4).predict(images(3))
    assert all(torch.equal(value, x[0]) for value in x)
    assert len({tuple(value.flatten().tolist()) for value in seen}) == 4


def test_numbers_are_predicted_too():
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    model = Supervised(network, Gaussian(), num_data=9).double()
    x, log = torch.randn(6, 4, dtype=F64), outputs(network)
    result = mc_dropout(model, None, num_samples=9).predict(x)
    means = torch.stack(log)
    torch.testing.assert_close(result.mean, means.mean(0))
    noise = model.likelihood.scale.detach().square()
    torch.testing.assert_close(result.variance, means.var(0, correction=0) + noise)


def test_inducing_inputs_are_left_whole():
    """They go through the blocks below without dropout."""
    model, guide = vit(SGPAttention.partial(inducing=3), dropout=0.5)
    layer, seen = model.network.blocks[1].attention, []
    original = layer.inducing_points
    layer.inducing_points = lambda: seen.append(original()) or seen[-1]
    mc_dropout(model, guide, num_samples=2).predict(images(3))
    model.eval()
    assert all(torch.equal(points, original()) for points in seen)


def test_the_same_seed_gives_the_same_and_each_call_new_masks():
    model, guide = vit()
    predictor, x = mc_dropout(model, guide, num_samples=3), images()
    first = seeded(predictor.predict, x)
    assert torch.equal(first.probs, seeded(predictor.predict, x).probs)
    assert not torch.equal(first.probs, predictor.predict(x).probs)


def test_the_masks_of_an_auto_guides_samples():
    model, _ = vit(KEP)
    guide = AutoNormal(local_posteriors(model))
    data = [(images(), torch.tensor([0, 1, 2, 0]))]
    materialise(guide, data[0])
    result = mc_dropout(model, guide.double(), num_samples=3).predict(data)
    assert result.probs.shape == (4, 3)
    assert (result.mutual_information > 0).all()


@pytest.mark.parametrize("attention", [SoftmaxAttention, KEP])
def test_dropout_acts_inside_and_outside_of_converted_parts(attention):
    """Equal inputs would give equal outputs."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
    encoder = replace_attention(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), attention=attention)
    sizes = {"dim": 4, "depth": 1, "heads": 2, "mlp_dim": 8}
    network = TextTransformer(encoder, max_length=5, classes=3, dropout=0.3, **sizes)
    model = Classifier(network, num_data=9).double()
    guide, data = guides.for_model(model), [(torch.randn(1, 5, 4, dtype=F64).repeat(4, 1, 1), None)]
    log = outputs(network)
    mc_dropout(model, guide, num_samples=3).predict(data)
    assert len(torch.stack(log).flatten(0, 1).unique(dim=0)) == 12
    without = seeded(mc_dropout(model, guide, num_samples=3, rate=0).predict, data)
    plain = seeded(lambda data: predict(model, guide, data, num_samples=3, vectorize=False), data)
    assert torch.allclose(without.probs, plain.probs, atol=1e-12)


def test_a_rate_replaces_those_of_the_layers_and_is_put_back():
    model, _ = chain(SoftmaxAttention(8, 2), nn.Flatten(-2), nn.Dropout(0.0), nn.Dropout(0.9), nn.Linear(24, 3))
    attention, _, first, second, _ = model.network
    with active_dropout(model, rate=0.25):
        assert (attention.dropout, first.p, second.p) == (0.25, 0.25, 0.25)
        log = inputs(model.network[3])
        model.eval()
        model(torch.randn(400, 3, 8, dtype=F64))
    assert (attention.dropout, first.p, second.p) == (0.0, 0.0, 0.9)
    share = (log[0] == 0).double().mean().item()
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / log[0].numel()) ** 0.5


class Raising(nn.Module):
    def forward(self, x):
        raise RuntimeError("broken")


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("where", [nn.Dropout, SoftmaxAttention])
def test_hooks_and_modes_are_as_before_also_when_the_model_raises(broken, where):
    middle = nn.Dropout(0.5) if where is nn.Dropout else SoftmaxAttention(4, 2, dropout=0.5)
    model, guide = chain(middle, Raising() if broken else nn.Identity(), nn.Flatten(-2), nn.Linear(12, 3))
    model.train()
    model.network[3].eval()
    modes = [module.training for module in model.modules()]
    x = torch.randn(2, 3, 4, dtype=F64)
    predictor = mc_dropout(model, guide, num_samples=2)
    if broken:
        with pytest.raises(RuntimeError, match="broken"):
            predictor.predict(x)
    else:
        predictor.predict(x)
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not pyro.poutine.runtime._PYRO_STACK


def test_outside_of_predict_a_pass_has_one_mask_per_example():
    model, _ = chain(nn.Dropout(0.5), nn.Linear(4, 3))
    model.eval()
    x, log = torch.ones(50, 4, dtype=F64), inputs(model.network[1])
    with active_dropout(model):
        model(x)
        with draws("example"):
            poutine.trace(model).get_trace(x)
    assert [dropped.shape for dropped in log] == [x.shape, x.shape]
    assert all(set(dropped.unique().tolist()) == {0.0, 2.0} for dropped in log)
    assert not any(module.training for module in model.modules())
    model(x)
    assert torch.equal(log[2], x)


def test_batch_norm_stays_in_evaluation_mode():
    model, _ = chain(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    norm = model.network[1]
    before, modes = norm.running_mean.clone(), []
    norm.register_forward_hook(lambda module, args, output: modes.append(module.training))
    mc_dropout(model.train(), None, num_samples=3).predict(torch.randn(8, 4, dtype=F64))
    assert modes == [False] * 3
    assert torch.equal(norm.running_mean, before)


def test_whole_channels_are_dropped_in_each_sample_and_example():
    model, _ = chain(nn.Dropout1d(0.5), nn.Flatten(-2), nn.Linear(40, 3))
    log = inputs(model.network[1])
    mc_dropout(model, None, num_samples=5).predict(torch.ones(3, 8, 5, dtype=F64))
    channels = torch.stack(log).amax(-1)
    assert torch.equal(torch.stack(log).amin(-1), channels)
    assert len(channels.flatten(0, 1).unique(dim=0)) > 9


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def test_torchs_attention_drops_out_too():
    model, _ = chain(Foreign(), nn.Flatten(-2), nn.Linear(12, 3))
    log = outputs(model.network)
    mc_dropout(model, None, num_samples=3).predict(torch.randn(1, 3, 4, dtype=F64).expand(8, 3, 4))
    assert len(torch.stack(log).flatten(0, 1).unique(dim=0)) > 12


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_a_rate_out_of_bounds_is_refused(rate):
    model, guide = vit()
    with pytest.raises(ValueError, match=r"a dropout rate lies in \[0, 1\)"):
        mc_dropout(model, guide, rate=rate).predict(images())


def test_a_module_whose_rate_is_nan_is_refused():
    """It would neither drop nor be an error, since NaN > 0 is False."""
    model, guide = vit()
    model.network.blocks[1].mlp[2].p = math.nan
    predictor = mc_dropout(model, guide)
    with pytest.raises(ValueError, match=r"a dropout rate lies in \[0, 1\)"):
        predictor.predict(images())
    assert len(mc_dropout(model, guide, rate=0.2).predict(images()).probs) == 4


def test_a_model_without_dropout_is_refused_unless_a_rate_is_given():
    model, guide = vit(dropout=0.0)
    with pytest.raises(ValueError, match="pass rate="):
        mc_dropout(model, guide)
    assert (mc_dropout(model, guide, rate=0.2).predict(images()).mutual_information > 0).all()
    model, guide = chain(nn.Linear(4, 3))
    for rate in (None, 0.5):
        with pytest.raises(ValueError, match="needs dropout modules"):
            mc_dropout(model, guide, rate=rate)
