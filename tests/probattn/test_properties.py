"""Properties of every layer with any options, at any size, mask, dtype, prior and guide."""

import contextlib
import warnings

import pytest
import torch
from elbos import TraceMeanField_ELBO
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import kl_divergence
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    JitterWarning,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    draws,
    families,
    guides,
    priors,
)
from probattn.draws import at_mean
from probattn.inference import predict
from probattn.models import Classifier

KERNELS = st.sampled_from(["ard", "exponential", "rbf"])
PRIORS = st.sampled_from(["normal", "laplace", "student_t"])
FAMILIES = ("full", "diagonal", "lowrank", "delta")
CORRELATED = {
    "canonical_guide": st.sampled_from(["prior", "learned", "posterior"]),
    "collapsed": st.booleans(),
    "output": st.sampled_from(["mean", "draw"]),
    "regulariser_norm": st.sampled_from(["scalar", "column", "example"]),
    "learn_noise": st.booleans(),
    "bias": st.booleans(),
}
KINDS = {
    "softmax": (SoftmaxAttention, {}),
    "kernel": (KernelAttention, {"kernel": KERNELS, "symmetric": st.booleans(), "bias": st.booleans()}),
    "kep-svgp": (
        KEPSVGPAttention,
        {
            "rank": st.integers(1, 2),
            "merge": st.sampled_from(["add", "concat", "concat_lowrank"]),
            "pair": st.sampled_from(["er", "ee", "rr"]),
            "projection": st.sampled_from(["data", "plain"]),
            "penalty": st.sampled_from(["example", "authors"]),
            "multiple": st.integers(1, 10),
            "prior": PRIORS,
            "bias": st.booleans(),
        },
    ),
    "sgpa": (
        SGPAttention,
        {
            "inducing": st.integers(1, 4),
            "kernel": KERNELS,
            "draws": st.sampled_from(["marginal", "joint"]),
            "prior": PRIORS,
            "bias": st.booleans(),
        },
    ),
    "sgpa-standard": (
        SGPAttention,
        {"inducing": st.none(), "kernel": KERNELS, "draws": st.sampled_from(["marginal", "joint"])},
    ),
    "cgp": (CGPAttention, CORRELATED),
    "sparse-cgp": (
        SparseCGPAttention,
        {"inducing": st.integers(1, 4), "inducing_keys": st.none() | st.integers(1, 4), **CORRELATED},
    ),
}
EXACT = 1e-8
layers = pytest.mark.parametrize("kind", KINDS)


class Network(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.attention, self.head = layer, nn.Linear(layer.dim, 3)

    def forward(self, x, mask=None):
        hidden = self.attention(x, mask)
        hidden = hidden if mask is None else hidden.where(mask.unsqueeze(-1), 0.0)
        return self.head(hidden.mean(-2))


@st.composite
def sizes(draw):
    """Lengths, and a mask with a token at least in every row, or none."""
    batch, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    if draw(st.booleans()):
        return (batch, tokens), None
    rows = st.lists(st.booleans(), min_size=tokens, max_size=tokens).filter(any)
    return (batch, tokens), torch.tensor([draw(rows) for _ in range(batch)])


@st.composite
def cases(draw, kind, **fixed):
    """A model with its guide, and a batch for it, in float64."""
    layer, options = KINDS[kind]
    (batch, tokens), mask = draw(sizes())
    heads, width = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    chosen = {name: draw(values) for name, values in options.items()} | fixed
    if chosen.get("merge", "add") != "add":
        chosen |= {"tokens": tokens, "rank": min(chosen["rank"], tokens)}
    torch.manual_seed(draw(st.integers(0, 99)))
    model = Classifier(Network(layer(heads * width, heads, **chosen)), num_data=10)
    guide = guides.for_model(model, draw(st.sampled_from(FAMILIES)) if model.network.attention.sites() else "full")
    model, guide = model.double(), guide.double()
    return model, guide, torch.randn(batch, tokens, heads * width, dtype=torch.float64), mask


@contextlib.contextmanager
def jitter():
    """Matrices of few tokens may need some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        yield


def at_the_mean(model, guide, x, mask=None):
    """Return the layer's output with every latent site at its posterior mean, (batch, tokens, dim)."""
    outputs = []
    handle = model.network.attention.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    batch = (x, torch.zeros(len(x), dtype=torch.long)) + (() if mask is None else (mask,))
    with jitter(), at_mean():
        predict(model, guide, [batch], num_samples=1)
    handle.remove()
    return outputs[-1].reshape(x.shape)


def real(output, mask):
    return output if mask is None else output[mask]


@layers
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_padding_of_any_length_that_holds_anything_changes_no_real_token(kind, data):
    fixed = {"merge": "add"} if kind == "kep-svgp" else {}
    model, guide, x, mask = data.draw(cases(kind, **fixed))
    more = data.draw(st.integers(1, 3))
    mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    garbage = data.draw(st.sampled_from([0.0, 7.0, -1e30]))
    longer = torch.cat([x.where(mask.unsqueeze(-1), garbage), x.new_full((len(x), more, x.shape[-1]), garbage)], 1)
    wider = nn.functional.pad(mask, (0, more))
    expected, found = at_the_mean(model, guide, x, mask), at_the_mean(model, guide, longer, wider)
    assert_close(found[wider], expected[mask], rtol=0, atol=EXACT)


@layers
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_examples_know_nothing_of_each_other(kind, data):
    model, guide, x, mask = data.draw(cases(kind))
    whole = at_the_mean(model, guide, x, mask)
    for row in range(len(x)):
        part = None if mask is None else mask[[row]]
        alone = at_the_mean(model, guide, x[[row]], part)
        assert_close(real(alone, part), real(whole[[row]], part), rtol=0, atol=EXACT)


@layers
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_permuting_tokens_permutes_the_output(kind, data):
    """But for what samples rows or mixes tokens by their place."""
    fixed = {"merge": "add", "projection": "plain"} if kind == "kep-svgp" else {}
    model, guide, x, mask = data.draw(cases(kind, **fixed))
    order = data.draw(st.permutations(range(x.shape[1])))
    permuted = None if mask is None else mask[:, order]
    found = at_the_mean(model, guide, x[:, order], permuted)
    assert_close(real(found, permuted), real(at_the_mean(model, guide, x, mask)[:, order], permuted), rtol=0, atol=1e-7)


@layers
@settings(deadline=None, max_examples=12)
@given(data=st.data(), how=st.sampled_from(["example", 1, 2, 3]), dtype=st.sampled_from(["single", "double", "half"]))
def test_a_step_of_training_is_finite_in_every_precision(kind, data, how, dtype):
    model, guide, x, mask = data.draw(cases(kind))
    if dtype != "double":
        model, guide, x = model.float(), guide.float(), x.float()
    module = TraceMeanField_ELBO()(model, guide)
    args = (x, torch.arange(len(x)) % 3) + (() if mask is None else (mask,))
    with jitter(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "half"), draws(how):
        loss = module(*args)
    loss.backward()
    assert loss.isfinite()
    assert loss.dtype == x.dtype
    for name, parameter in module.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@layers
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_float32_is_near_float64_and_bf16_near_both(kind, data):
    model, guide, x, mask = data.draw(cases(kind))
    exact = at_the_mean(model, guide, x, mask)
    model, guide, x = model.float(), guide.float(), x.float()
    single = at_the_mean(model, guide, x, mask)
    with torch.autocast("cpu", torch.bfloat16):
        half = at_the_mean(model, guide, x, mask)
    assert single.dtype == torch.float32
    scale = exact.abs().max().item() + 1
    assert_close(real(single, mask).double(), real(exact, mask), rtol=0, atol=1e-3 * scale)
    assert_close(real(half, mask).double(), real(exact, mask), rtol=0, atol=0.15 * scale)


@layers
@settings(deadline=None, max_examples=12)
@given(data=st.data(), number=st.integers(1, 4))
def test_draws_are_one_dimension_more_where_something_is_drawn_and_none_elsewhere(kind, data, number):
    """The same for as many draws as examples, and for other numbers."""
    model, guide, x, mask = data.draw(cases(kind))
    shapes = []
    layer = model.network.attention
    layer.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    batch = (x, torch.zeros(len(x), dtype=torch.long)) + (() if mask is None else (mask,))
    with jitter():
        found = predict(model, guide, [batch], num_samples=number, keep_draws=True)
    assert shapes[-1] == ((number, *x.shape) if layer.is_stochastic() else x.shape)
    assert found.draws.shape == (number, len(x), 3)
    assert_close(found.draws.mean(0), found.probs)
    if number > 1 and not any(isinstance(module, families.Delta) for module in guide.modules()):
        assert (found.draws.std(0).max() > 0) == layer.is_stochastic()


@settings(deadline=None, max_examples=60)
@given(
    prior=st.sampled_from([priors.normal, priors.laplace, priors.student_t()]),
    family=st.sampled_from([families.Full, families.Diagonal, families.LowRank]),
    event=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)),
    batch=st.sampled_from([(), (3,), (2, 1), (2, 3)]),
    seed=st.integers(0, 99),
)
def test_a_site_that_is_drawn_many_times_has_one_kl_each_and_its_event_stays_whole(prior, family, event, batch, seed):
    torch.manual_seed(seed)
    p = prior(torch.rand(event, dtype=torch.float64) + 0.5)
    q = family(p).double()(p)
    assert p.event_shape == q.event_shape == event
    wide = q.expand(batch)
    assert wide.rsample().shape == (*batch, *event)
    value = wide.rsample()
    assert wide.log_prob(value).shape == batch
    assert_close(wide.log_prob(value), q.log_prob(value))
    try:
        kl = kl_divergence(q, p)
    except NotImplementedError:
        return
    assert kl.shape == ()
    assert kl >= 0
    assert_close(kl_divergence(wide, p.expand(batch)), kl.expand(batch))
    sample = q.sample((4000,))
    ratios = q.log_prob(sample) - p.log_prob(sample)
    assert abs(ratios.mean() - kl) < 6 * ratios.std() / 4000**0.5 + 1e-9
