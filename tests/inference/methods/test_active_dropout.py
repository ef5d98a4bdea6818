"""The context manager of MC dropout: rates, hooks, modes and refused networks."""

import math

import pyro
import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from dropout_networks import F64, chain, images, inputs, outputs, vit
from fitted_methods import mc_dropout
from torch import nn

from probattn import SoftmaxAttention, draws
from probattn.inference.methods.mc_dropout import active_dropout


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
    mc_dropout(model, None, num_samples=4000).predict(x)
    sums = torch.cat(log, 1)[..., 0]
    variance = layer.attention_matrix(x)[:, 0].detach().square().sum(-1)  # p / (1 − p) Σ_j a_j²
    assert sums.shape == (4000, 2, 3)
    assert ((sums.mean(0) - 1).abs() < 5 * (variance / 4000).sqrt()).all()
    torch.testing.assert_close(sums.var(0), variance, rtol=0.2, atol=0)


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


def test_modes_are_put_back_without_predict():
    model, _ = chain(nn.Dropout(0.5), nn.Linear(4, 3))
    model.eval()
    x = torch.ones(50, 4, dtype=F64)
    with active_dropout(model):
        model(x)
    assert not any(module.training for module in model.modules())


def test_outside_of_draws_a_pass_has_one_mask_per_example():
    model, _ = chain(nn.Dropout(0.5), nn.Linear(4, 3))
    model.eval()
    x, log = torch.ones(50, 4, dtype=F64), inputs(model.network[1])
    with active_dropout(model):
        model(x)
        with draws("example"):
            poutine.trace(model).get_trace(x)
    assert [dropped.shape for dropped in log] == [x.shape, x.shape]
    assert all(set(dropped.unique().tolist()) == {0.0, 2.0} for dropped in log)
    model(x)
    assert torch.equal(log[2], x)


def test_batch_norm_stays_in_evaluation_mode():
    model, _ = chain(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    norm = model.network[1]
    before, modes = norm.running_mean.clone(), []
    norm.register_forward_hook(lambda module, args, output: modes.append(module.training))
    mc_dropout(model.train(), None, num_samples=3).predict(torch.randn(8, 4, dtype=F64))
    assert modes == [False]
    assert torch.equal(norm.running_mean, before)


@pytest.mark.parametrize("batch", [1, 3])
def test_whole_channels_are_dropped_in_each_draw_and_example(batch):
    model, _ = chain(nn.Dropout1d(0.5), nn.Flatten(-2), nn.Linear(40, 3))
    log = inputs(model.network[1])
    mc_dropout(model, None, num_samples=5).predict(torch.ones(batch, 8, 5, dtype=F64))
    channels = log[0].amax(-1)
    assert torch.equal(log[0].amin(-1), channels)
    assert channels.shape == (5, batch, 8)
    assert len(channels.flatten(0, 1).unique(dim=0)) > 3 * batch


@pytest.mark.parametrize("batch", [1, 4])
def test_dropout_in_place_does_not_touch_what_draws_share(batch):
    model, _ = chain(nn.Linear(8, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, 3))
    log = inputs(model.network[2])
    mc_dropout(model, None, num_samples=6).predict(torch.randn(batch, 8, dtype=F64))
    assert len(log[0].flatten(0, 1).unique(dim=0)) == 6 * batch


class Pooled(nn.Module):
    """Averages over the examples, where it is not given draws."""

    def forward(self, x):
        return x.mean(0)


def test_a_layer_that_loses_draws_or_batch_is_found_at_the_next_dropout():
    model, _ = chain(nn.Dropout(0.5), Pooled(), nn.Dropout(0.5), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"dropout at network\.2 .* shape \(3, 4\).* start with \(5, 3\)"):
        mc_dropout(model, None, num_samples=5).predict(torch.randn(3, 4, dtype=F64))
    model, _ = chain(nn.Flatten(0, 1), nn.Dropout(0.5), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"dropout at network\.1 .* shape \(6, 4\).* start with \(3,\)"):
        mc_dropout(model, None, num_samples=5).predict(torch.randn(3, 2, 4, dtype=F64))


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def test_torchs_attention_drops_out_but_takes_no_draws():
    model, _ = chain(Foreign(), nn.Flatten(-2), nn.Linear(12, 3))
    with pytest.raises(AssertionError, match="query should be"):
        mc_dropout(model, None).predict(torch.randn(2, 3, 4, dtype=F64))
    x = torch.randn(1, 3, 4, dtype=F64).expand(64, 3, 4)
    model.eval()
    with torch.no_grad(), active_dropout(model):
        logits = model.network(x)
    assert len(logits.unique(dim=0)) > 20


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
    mc_dropout(model, guide, rate=0)
    model, guide = chain(nn.Linear(4, 3))
    for rate in (None, 0.5):
        with pytest.raises(ValueError, match="needs dropout modules"):
            mc_dropout(model, guide, rate=rate)
    x = torch.randn(2, 4, dtype=F64)
    torch.testing.assert_close(
        mc_dropout(model, guide, rate=0).predict(x).probs, F.softmax(model.network(x), -1).detach()
    )
