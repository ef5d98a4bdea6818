"""Draws folded into the batch of a converted network against a loop over the draws."""

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from third_party_networks import KEP, MASKED, NAMES, modelled, outputs_of, third_party
from torch import nn
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    draws,
    guides,
    local_posteriors,
)
from probattn.inference.prediction.latents import global_part, run_guide
from probattn.models import Classifier, replace_attention
from probattn.site_info import info_of

EVERY = pytest.mark.parametrize("name", NAMES)


def run(model, number, x, mask):
    """The trace of one pass under that many draws."""
    model.eval()
    with torch.no_grad(), draws(number):
        latents = global_part(run_guide(model, guides.for_model(model), (x, None, mask)))
        with local_posteriors():
            return poutine.trace(poutine.replay(model, trace=latents)).get_trace(x, None, mask)


def values_of(trace):
    """Values of the latent sites by name."""
    sites = {
        name: node for name, node in trace.nodes.items() if node["type"] == "sample" and name != "y"
    }
    drawn = {
        name: node for name, node in sites.items() if not node["is_observed"] or info_of(node).drawn
    }
    return {name: node["value"] for name, node in drawn.items()}


def check_loop(model, number, x, mask=None):
    """Compare the outputs of several draws at once with one pass for each draw."""
    log = outputs_of(model)
    values = values_of(run(model, number, x, mask))
    (folded,) = log
    assert folded.shape[:2] == (number, len(x))
    assert values
    for draw in range(number):
        one = {name: value[draw] for name, value in values.items()}
        one = {name: value[0] if name.endswith(".u") else value for name, value in one.items()}
        with torch.no_grad():
            poutine.condition(model, data=one)(x, None, mask)
        assert_close(folded[draw], log[-1], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(
    ("name", "layers", "number", "attention"),
    [
        *((name, "last", 3, KEP) for name in NAMES),
        *(
            (name, layers, 4, KEP)
            for name in ("torchvision", "tagger", "bert-eager")
            for layers in ("all", [1])
        ),
        *((name, "all", 1, KEP) for name in ("torch-second", "bert-sdpa")),
        *(
            (name, [1, 2], 4, SGPAttention.partial(inducing=3))
            for name in ("torchvision", "tagger")
        ),
        *(
            (name, [1, 2], 4, SGPAttention.partial(inducing=None))
            for name in ("timm", "bert-eager")
        ),
        *((name, [1, 2], 4, CGPAttention) for name in ("torch", "bert-sdpa")),
    ],
)
def test_several_draws_at_once_equal_a_loop_over_the_draws(name, layers, number, attention):
    given = third_party(name)
    check_loop(modelled(given, layers=layers, attention=attention), number, given.x, given.mask)


class Block(nn.Module):
    """A user's own, whose attention wants its batch second, or is called with three tensors that
    are equal."""

    def __init__(self, *, second):
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

    def __init__(self, *, halves=False, second=True):
        super().__init__()
        self.blocks = nn.ModuleList(Block(second=second) for _ in range(3))
        self.head, self.halves = nn.Linear(8, 3), halves

    def forward(self, x):
        for block in self.blocks:
            x = block.attend(x) if self.halves else block(x)
            x = x + block.mlp(x) if self.halves else x
        return self.head(x.mean(1))


class Stem(nn.Module):
    """Modules whose outputs the network changes in place, flattens over the batch, or takes from a
    dictionary."""

    def __init__(self):
        super().__init__()
        self.backbone, self.embed, self.flat = (nn.Linear(8, 8) for _ in range(3))
        self.positions = nn.Parameter(torch.randn(5, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed({"tokens": self.backbone(x).tanh(), "number": 1}["tokens"])
        x += self.positions
        x = self.flat(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (5, -1)).transpose(0, 1)
        return self.head(self.block(x).mean(1))


def nested(inner):
    return lambda: nn.Sequential(
        replace_attention(third_party("torch").network, attention=inner, layers=[1]), Own()
    )


@pytest.mark.parametrize("batch", [1, 4, 5])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Own, {"layers": "all"}),
        (lambda: Own(second=False), {"layers": [1]}),
        (lambda: Own(halves=True), {"layers": [1]}),
        (lambda: Own(halves=True, second=False), {"layers": "last"}),
        (Stem, {}),
        (nested(KEP), {}),
        (nested(SoftmaxAttention), {}),
        (nested(KEP), {"attention": SoftmaxAttention}),
    ],
)
def test_networks_of_ones_own_equal_a_loop_over_the_draws(make, options, batch):
    network = replace_attention(make().double(), **({"attention": KEP} | options))
    check_loop(Classifier(network, num_data=4), 3, torch.randn(batch, 5, 8).double())


@EVERY
def test_blocks_below_the_first_stochastic_one_run_once_and_nothing_stays_replaced(name):
    given = third_party(name)
    model, sizes = modelled(given), []
    for number in range(3):
        block = model.network.wrapped.get_submodule(given.block(number))
        linear = next(module for module in block.modules() if type(module) is nn.Linear)
        linear.register_forward_hook(lambda module, args, output: sizes.append(args[0].numel()))
    run(model, 4, given.x, given.mask)
    with torch.no_grad():
        model(given.x, None, given.mask)
    assert sizes == [*sizes[3:5], 4 * sizes[5], *sizes[3:]]
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    norms[-1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(model, 3, given.x, given.mask)
    assert not any("forward" in vars(module) for module in model.modules())


def test_parts_of_a_module_that_are_called_without_it_run_once():
    """As those of a backbone of which a network calls ``forward_features``."""
    network, sizes = replace_attention(Own(halves=True), attention=KEP), []
    for block in network.wrapped.blocks:
        block.mlp.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
        block.mlp = nn.Sequential(block.mlp)  # of which the layer runs where it is computed
    run(Classifier(network, num_data=4).eval(), 3, torch.randn(4, 5, 8), None)
    assert sizes == [4, 4, 12]


@pytest.mark.parametrize(
    ("name", "attention"),
    [*((name, KEP) for name in MASKED), ("tagger", KernelAttention), ("bert-eager", CGPAttention)],
)
def test_padding_order_and_the_rest_of_the_batch_change_no_real_token(name, attention):
    given = third_party(name)
    options = {"output": "mean", "collapsed": True} if attention is CGPAttention else {}
    model = modelled(
        given, attention=attention.partial(**options) if options else attention, layers=[1, 2]
    )
    values = values_of(run(model, 3, given.x, given.mask))
    log = outputs_of(model)

    def real(x, mask, shown=None):
        """Outputs of real tokens, or of examples, behind the draws."""
        with torch.no_grad(), draws(3):
            poutine.condition(model, data=values)(x, None, mask if shown is None else shown)
        output = log[-1] if values else log[-1].unsqueeze(0)
        return output[:, mask] if output.shape[2] == mask.shape[1] else output

    expected = real(given.x, given.mask)
    wider, mask = torch.cat([given.x, given.x[:, :2]], 1), F.pad(given.mask, (0, 2))
    wider[~mask] = wider[0, 0].clone()
    assert_close(real(wider, mask), expected, atol=1e-10, rtol=0)
    rows = [real(given.x[[row]], given.mask[[row]]) for row in (3, 0, 2, 1)]
    assert_close(torch.cat([rows[1], rows[3], rows[2], rows[0]], 1), expected, atol=1e-10, rtol=0)
    assert not torch.allclose(
        real(given.x, given.mask, torch.ones_like(given.mask)), expected, atol=1e-6
    )
