"""Draws folded into the batch against a loop over the draws."""

from types import SimpleNamespace

import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from probattn import CGPAttention, KEPSVGPAttention, KernelAttention, SGPAttention, SoftmaxAttention, draws
from probattn.models import Classifier, replace_attention

KEP = KEPSVGPAttention.partial(rank=2)
STOCHASTIC = {
    "kep": KEP,
    "sgpa": SGPAttention.partial(inducing=3),
    "sgpa-standard": SGPAttention.partial(inducing=None),
    "cgp": CGPAttention,
}


@pytest.mark.parametrize("number", [1, 3, 4])
@pytest.mark.parametrize("layers", ["last", "all", [1]])
def test_equals_a_loop_over_the_draws(latents, modelled, outputs_of, run, third_party, name, layers, number):
    given = third_party(name)
    model = modelled(given, layers=layers)
    log = outputs_of(model)
    trace = run(model, number, given.x, given.mask)
    _check_loop(model, log, latents(trace), number, given)


@pytest.mark.parametrize("kind", STOCHASTIC)
@pytest.mark.parametrize("which", ["torchvision", "tagger", "bert-eager"])
def test_each_stochastic_layer_equals_a_loop_over_the_draws(
    latents, modelled, outputs_of, run, third_party, which, kind
):
    given = third_party(which)
    model = modelled(given, layers=[1, 2], attention=STOCHASTIC[kind])
    log = outputs_of(model)
    trace = run(model, 4, given.x, given.mask)
    _check_loop(model, log, latents(trace), 4, given)


def _check_loop(model, log, sites, number, given):
    (folded,) = log
    assert folded.shape[:2] == (number, len(given.x))
    assert sites
    for s in range(number):
        log.clear()
        data = {name: node["value"][s] for name, node in sites.items()}
        data = {name: value[0] if name.endswith(".u") else value for name, value in data.items()}
        with torch.no_grad():
            poutine.condition(model, data=data)(given.x, None, given.mask)
        (plain,) = log
        assert_close(folded[s], plain, atol=1e-10, rtol=1e-8)


class Block(nn.Module):
    """A user's own, whose attention wants its batch second, or is called with three tensors that are equal."""

    def __init__(self, *, second=True):
        super().__init__()
        self.norm, self.mlp, self.second = nn.LayerNorm(8), nn.Linear(8, 8), second
        self.attention = nn.MultiheadAttention(8, 2, batch_first=not second)

    def attend(self, x):
        if not self.second:
            return x + self.attention(self.norm(x), self.norm(x), self.norm(x))[0]
        turned = self.norm(x).transpose(0, 1)
        return x + self.attention(turned, turned, turned)[0].transpose(0, 1)

    def forward(self, x):
        x = self.attend(x)
        return x + self.mlp(x)


class Own(nn.Module):
    """A user's own network of blocks, which runs them or their halves."""

    def __init__(self, *, halves=False, **options):
        super().__init__()
        self.blocks = nn.ModuleList(Block(**options) for _ in range(3))
        self.head, self.halves = nn.Linear(8, 3), halves

    def forward(self, x):
        for block in self.blocks:
            x = block.attend(x) if self.halves else block(x)
            x = x + block.mlp(x) if self.halves else x
        return self.head(x.mean(1))


@pytest.mark.parametrize("layers", ["last", [1], "all"])
@pytest.mark.parametrize("options", [{}, {"second": False}, {"halves": True}, {"halves": True, "second": False}])
def test_networks_of_ones_own_equal_a_loop_over_the_draws(latents, outputs_of, run, options, layers):
    given = SimpleNamespace(x=torch.randn(4, 5, 8).double(), mask=None)
    model = Classifier(replace_attention(Own(**options).double(), attention=KEP, layers=layers), num_data=4)
    log, seen = outputs_of(model), []
    model.network.wrapped.blocks[0].mlp.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    trace = run(model, 3, given.x, None)
    if not options.get("halves"):
        assert seen == ([12] if layers == "all" else [4])
    _check_loop(model, log, latents(trace), 3, given)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("inner", [KEP, SoftmaxAttention])
@pytest.mark.parametrize("outer", [KEP, SoftmaxAttention])
def test_a_converted_network_inside_another_leaves_the_folding_to_it(
    latents, outputs_of, run, third_party, inner, outer, batch
):
    given = SimpleNamespace(x=torch.randn(batch, 5, 8).double(), mask=None)
    network = nn.Sequential(
        replace_attention(third_party("torch").network, attention=inner, layers=[1]), Own().double()
    )
    model = Classifier(replace_attention(network, attention=outer), num_data=4)
    log, calls = outputs_of(model), []
    model.network.wrapped[0].wrapped.register_forward_pre_hook(lambda *_: calls.append(True))
    trace = run(model, 3, given.x, None)
    if inner is outer is SoftmaxAttention:
        assert log[0].shape == (batch, 3)
    else:
        assert len(calls) == (1 if inner is SoftmaxAttention else 2)
        _check_loop(model, log, latents(trace), 3, given)


@pytest.mark.parametrize("number", [3, 4])
def test_blocks_below_the_first_stochastic_one_run_once(modelled, run, third_party, name, number):
    given = third_party(name)
    model, seen = modelled(given), []
    for each in range(3):
        inner = next(
            m for m in model.network.wrapped.get_submodule(given.block(each)).modules() if type(m) is nn.Linear
        )
        inner.register_forward_hook(lambda module, args, output, each=each: seen.append((each, args[0].numel())))
    run(model, number, given.x, given.mask)
    sizes = dict(seen)
    assert [each for each, _ in seen] == [0, 1, 2], "each block once"
    assert sizes[0] == sizes[1]
    seen.clear()
    with torch.no_grad():
        model(given.x, None, given.mask)
    once = dict(seen)
    assert sizes == {0: once[0], 1: once[1], 2: number * once[2]}


MEAN_CGP = CGPAttention.partial(output="mean", collapsed=True)


@pytest.mark.parametrize("attention", [SoftmaxAttention, KernelAttention, MEAN_CGP])
def test_nothing_is_folded_where_nothing_is_drawn(third_party, name, attention):
    given = third_party(name)
    converted = replace_attention(given.network, attention=attention, layers="all").eval()
    with torch.no_grad(), draws(3):
        output = converted(given.x, given.mask)
    assert output.shape[0] == 4
    assert torch.equal(output, converted(given.x, given.mask))


def test_forwards_are_restored_even_after_an_error(modelled, run, third_party, name):
    given = third_party(name)
    model = modelled(given)
    run(model, 3, given.x, given.mask)
    assert not any("forward" in vars(module) for module in model.modules())
    head = [module for module in model.modules() if isinstance(module, nn.LayerNorm)][-1]
    head.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(model, 3, given.x, given.mask)
    assert not any("forward" in vars(module) for module in model.modules())


class Stem(nn.Module):
    """Modules whose outputs the network changes in place, flattens over the batch, or takes from a dictionary."""

    def __init__(self):
        super().__init__()
        self.embed, self.flat = nn.Linear(8, 8), nn.Linear(8, 8)
        self.backbone = Backbone()
        self.positions = nn.Parameter(torch.randn(5, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed(self.backbone(x)["tokens"])
        x += self.positions
        x = self.flat(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (5, -1)).transpose(0, 1)
        return self.head(self.block(x).mean(1))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return {"tokens": self.linear(x).tanh(), "number": 1}


@pytest.mark.parametrize("batch", [1, 4, 5])
def test_modules_below_the_replaced_layer_run_once_whatever_they_are(latents, outputs_of, run, batch):
    given = SimpleNamespace(x=torch.randn(batch, 5, 8).double(), mask=None)
    model = Classifier(replace_attention(Stem().double(), attention=KEP), num_data=4)
    log, sizes = outputs_of(model), []
    model.network.wrapped.backbone.linear.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    trace = run(model, 3, given.x, None)
    assert sizes == [batch]
    _check_loop(model, log, latents(trace), 3, given)
