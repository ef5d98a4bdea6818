"""Identities of every form of every layer: examples on their own, padding, permutations, draws,
memory layout."""

import pyro
import pyro.poutine as poutine
import pytest
import torch
from attention_layers import ANY_LENGTH, FOUR_TOKENS, LAYERS
from sampling import randn, under
from torch.testing import assert_close

from probattn import draws, local_posteriors
from probattn.draws import at_mean

pytestmark = pytest.mark.filterwarnings("ignore::probattn.JitterWarning")
MASK = torch.tensor([[True] * 4, [True, False, True, False], [False, True, False, False]])
PERMUTABLE = [name for name in ANY_LENGTH if "svgp" not in name or "plain" in name or "svd" in name]
"""But for what samples rows by their place."""


def make(name):
    """A layer whose parameters are all away from their initial values."""
    torch.manual_seed(0)
    layer = LAYERS[name](8, 2).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return layer


def run(layer, x, mask=None, u=None):
    """Output and log density of what each example draws, at a value of u, with local sites at their
    posterior means."""
    values = {
        name: randn(*prior.event_shape, seed=9) if u is None else u
        for name, prior in layer.sites().items()
    }
    plates = [
        pyro.plate(f"plate {-dim}", x.shape[dim - 2], dim=dim) for dim in range(2 - x.dim(), 0)
    ]
    with under(at_mean(), local_posteriors(), poutine.condition(data=values), *plates):
        trace = poutine.trace(layer).get_trace(x, mask)
    trace.compute_log_prob()
    sites = [
        node
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and name not in values
    ]
    log_prob = sum((node["log_prob"] for node in sites), torch.zeros(x.shape[:-2], dtype=x.dtype))
    return trace.nodes["_RETURN"]["value"], log_prob


def output(layer, x, mask=None, u=None):
    return run(layer, x, mask, u)[0]


@pytest.mark.parametrize("name", ANY_LENGTH)
def test_an_example_is_what_it_is_alone_whatever_stands_at_padding(name):
    layer, x = make(name), randn(3, 4, 8)
    mask = torch.cat([MASK, torch.zeros(3, 2, dtype=torch.bool)], dim=1)
    longer = torch.cat([x, x[:, :2]], dim=1).where(mask.unsqueeze(-1), torch.nan)
    together, log_prob = run(layer, longer, mask)
    for b in range(3):
        alone = run(layer, x[b : b + 1, MASK[b]])
        assert_close(together[b, mask[b]], alone[0][0])
        if name != "kep-svgp-authors":  # its penalty is of the batch
            assert_close(log_prob[b], alone[1][0])
    (together[mask].square().sum() + log_prob.sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", PERMUTABLE)
def test_permuting_tokens_permutes_the_output(name):
    layer, x, order = make(name), randn(3, 4, 8), [2, 0, 3, 1]
    whole, permuted = output(layer, x, MASK), output(layer, x[:, order], MASK[:, order])
    assert_close(permuted[MASK[:, order]], whole[:, order][MASK[:, order]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_draws_and_batches_of_the_input_are_each_what_they_are_alone(name):
    layer, mask = make(name), None if name == "sparse-cgp-tokens" else MASK
    x = randn(8, 4, 3, 2, 5).permute(4, 3, 2, 1, 0)  # not contiguous
    together, log_prob = run(layer, x, mask)
    assert together.shape == x.shape
    for s in range(5):
        assert_close((together[s], log_prob[s]), run(layer, x[s].contiguous(), mask))
    for prior in (
        layer.sites().values()
    ):  # draw s of u belongs to draw s of the input, and to one input for all
        u, one = randn(5, 1, *prior.event_shape, seed=1), x[0, 0].expand(5, -1, -1, -1)
        for below, whole in ((x[:, 0], x[:, 0]), (one, x[0, 0])):
            together = output(layer, whole, mask, u)
            for s in range(5):
                assert_close(together[s], output(layer, below[s], mask, u[s, 0]))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("number", [2, 3])
def test_draws_are_one_dimension_more_where_something_is_drawn_and_none_elsewhere(name, number):
    """The same for as many draws as examples, and for other numbers."""
    layer, x = make(name), randn(1, 4, 8).expand(3, 4, 8)
    with draws(number), local_posteriors():
        put_out = poutine.trace(layer).get_trace(x).nodes["_RETURN"]["value"]
    if not layer.is_stochastic():
        assert put_out.shape == x.shape
        return
    assert put_out.shape == (number, *x.shape)
    own = number * (
        3 if layer.local_sites(x, None) or not layer.sites() else 1
    )  # local sites differ between examples
    assert len(put_out.flatten(2).flatten(0, 1).unique(dim=0)) >= own


@pytest.mark.parametrize(
    "name", sorted(LAYERS.keys() - {"kep-svgp-mean"})
)  # its penalty: no gradient in x
def test_gradients_of_output_and_log_density(name):
    layer, x = make(name), randn(2, 4, 8)
    names = [name for name, _ in layer.named_parameters()]
    mask = None if name in FOUR_TOKENS else MASK[:2]

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            put_out, log_prob = run(self.layer, x, mask)
            return put_out if mask is None else put_out[mask], log_prob

    def function(x, *parameters):
        values = {f"layer.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Program(), values, (x,))

    inputs = [value.detach().clone().requires_grad_() for value in (x, *layer.parameters())]
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
