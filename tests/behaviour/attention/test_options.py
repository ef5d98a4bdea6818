"""Errors of every layer, with a word that helps; signatures; names of sites; precision."""

import inspect
import math

import pyro.poutine as poutine
import pytest
import torch
from attention_layers import LAYERS
from torch import nn
from torch.testing import assert_close

import probattn
from probattn import NumericalError, SGPAttention, guides, local_posteriors, name_layers, priors
from probattn.draws import at_mean

pytestmark = pytest.mark.filterwarnings("ignore::probattn.JitterWarning")
CORRELATED = [
    ({"canonical_guide": "map"}, "posterior, prior, learned"),
    ({"canonical_guide": nn.Linear, "collapsed": True}, "closed form"),
    ({"output": "sample"}, "mean, draw"),
    ({"regulariser_norm": "token"}, "scalar, column, example"),
    ({"noise": 0.0}, "noise > 0"),
    ({"alpha": -1.0}, "alpha"),
]
REFUSED = {
    "KEPSVGPAttention": [
        ({"rank": 5}, "1..4"),
        ({"rank": 4, "tokens": 3, "merge": "concat"}, "at most the 3 tokens"),
        ({"merge": "concat"}, "tokens=N"),
        ({"merge": "sum"}, "add, concat"),
        ({"pair": "re"}, "er, ee, rr"),
        ({"projection": "none"}, "data, plain"),
        ({"penalty": "l1"}, "example, authors"),
        ({"prior": "cauchy"}, "normal, laplace"),
        ({"scale": -1.0}, "scale > 0"),
        ({"residual": 0.0}, "residual > 0"),
        ({"eta": -1.0}, "eta"),
        ({"multiple": 0}, "multiple"),
        ({"mean": "linear"}, "mean"),
        ({"mean": "softmax", "dropout": 1.0}, "dropout"),
        ({"dropout": 99.0}, "dropout"),
    ],
    "SGPAttention": [
        ({"inducing": 0}, "positive number, or None"),
        ({"draws": "mean"}, "marginal, joint"),
        ({"inducing": None, "prior": "laplace"}, "no global site"),
    ],
    "CGPAttention": CORRELATED,
    "SparseCGPAttention": [*CORRELATED, ({"inducing_keys": 0}, "positive")],
    "KernelAttention": [
        ({"kernel": "matern"}, "rbf, ard, exponential"),
        ({"variance": 2.0}, "variance"),
    ],
    "SoftmaxAttention": [
        ({"dropout": math.nan}, "dropout"),
        ({"dim": 10, "heads": 4}, "multiple of heads"),
    ],
}


@pytest.mark.parametrize(
    ("layer", "options", "word"), [(kind, *row) for kind, rows in REFUSED.items() for row in rows]
)
def test_wrong_options_are_refused(layer, options, word):
    defaults = {"dim": 8, "heads": 2} | ({"rank": 2} if layer == "KEPSVGPAttention" else {})
    with pytest.raises(ValueError, match=word):
        getattr(probattn, layer)(**defaults | options)


@pytest.mark.parametrize(
    "layer", ["softmax", "kernel", "kep-svgp", "sgpa", "cgp", "anchored", "rff-gpa", "rff-cgp"]
)
@pytest.mark.parametrize(
    ("x", "mask", "word"),
    [
        (torch.zeros(2, 6, 11), None, "dim=11"),
        (torch.zeros(6, 8), None, "batch, tokens, 8"),
        (torch.zeros(2, 0, 8), None, "without any token"),
        (torch.zeros(2, 6, 8), torch.ones(2, 5).bool(), "boolean mask"),
        (torch.zeros(2, 6, 8), torch.ones(2, 6), "boolean mask"),
        (torch.zeros(2, 6, 8), torch.tensor([[True] * 6, [False] * 6]), r"rows \[1\]"),
    ],
)
def test_wrong_input_is_refused(layer, x, mask, word):
    layer = LAYERS[layer](8, 2)
    for method in ("forward", "attention_matrix"):
        if hasattr(layer, method):
            with pytest.raises(ValueError, match=word):
                getattr(layer, method)(x, mask)


def test_another_number_of_tokens_than_the_fixed_one_and_a_prior_without_a_variance_are_refused():
    with pytest.raises(ValueError, match="for 4 tokens, got 5"):
        LAYERS["kep-svgp-concat"](8, 2)(torch.zeros(2, 5, 8))
    for df in (2.0, math.nan):
        with pytest.raises(ValueError, match="df > 2"):
            priors.student_t(df)


def test_signatures_differ_where_the_program_does_and_not_where_training_does():
    """Checkpoints tell apart what has parameters of the same shapes."""
    alike = (
        "dropout",
        "residual",
        "mean",
        "evidence",
        "tokens",
        "dual",
        "keys",
    )  # or differ in their parameters
    names = [name for name in LAYERS if not name.endswith(alike)] + ["cgp-collapsed-mean"]
    signatures = {tuple(sorted(LAYERS[name](8, 2).signature().items())) for name in names}
    assert len(signatures) == len(names)
    for layer, option in ((probattn.SoftmaxAttention, "dropout"), (probattn.CGPAttention, "alpha")):
        assert layer(8, 2, **{option: 0.3}).signature() == layer(8, 2).signature()


def test_layers_of_ones_own_may_pass_on_options_in_any_form():
    class Passing(SGPAttention):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)

    class Fixed(SGPAttention):
        def __init__(self, width=8, *, inducing=2, **options):
            super().__init__(width, 2, inducing=inducing, **options)

    class Own(SGPAttention):
        def __init__(self, dim, heads, *, options=None):
            super().__init__(dim, heads)

    of_base = {*inspect.signature(SGPAttention).parameters} - {"dim", "heads"}
    names = [{*inspect.signature(kind).parameters} for kind in (Passing, Fixed, Own)]
    assert names == [of_base | {"args"}, of_base | {"width"}, {"dim", "heads", "options"}]
    assert Passing(8, 2, inducing=3).inducing == 3
    assert Fixed(draws="joint").draws == "joint"


@pytest.mark.parametrize("name", LAYERS)
def test_two_layers_of_one_program_have_sites_of_their_own(name):
    pair = nn.Sequential(LAYERS[name](8, 2), LAYERS[name](8, 2))
    name_layers(pair, "blocks")
    with local_posteriors():
        nodes = poutine.trace(pair).get_trace(torch.randn(2, 4, 8)).nodes
    sites = [site for site, node in nodes.items() if node["type"] == "sample"]
    assert all(site.startswith("blocks.") for site in sites)
    assert {site.replace(".0.", ".1.") for site in sites} == {
        site for site in sites if ".1." in site
    }
    drawn = guides.for_model(local_posteriors(pair))(None)
    assert set(drawn) == {f"blocks.{i}.{site}" for i in (0, 1) for site in pair[0].sites()}


@pytest.mark.parametrize("name", LAYERS)
def test_float32_is_near_float64_and_bf16_near_both(name):
    layer = LAYERS[name](8, 2).eval()
    x = torch.randn(3, 4, 8)
    u = {site: torch.randn(prior.event_shape) for site, prior in layer.sites().items()}

    def put_out(dtype):
        layer.to(dtype)
        given = {site: value.to(dtype) for site, value in u.items()}
        with at_mean(), local_posteriors(), poutine.condition(data=given):
            return layer(x.to(dtype)).detach()

    single = put_out(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        half = put_out(torch.float32)
    exact = put_out(torch.float64)
    assert (single.dtype, half.dtype) == (torch.float32, torch.bfloat16)
    assert_close(single.double(), exact, rtol=0, atol=1e-3 * (1 + exact.abs().max().item()))
    assert_close(half.double(), exact, rtol=0, atol=0.15 * (1 + exact.abs().max().item()))


def test_an_exponential_kernel_that_overflows_at_one_inducing_input_is_an_error_not_a_dropped_one():
    layer = SGPAttention(6, 2, inducing=3, kernel="exponential")
    with torch.no_grad():
        layer.form.inducing[0, 0] *= 60
    beta = layer.inducing_points()
    assert torch.isinf(layer.kernel(beta, beta)).any()
    with pytest.raises(NumericalError, match="NaN or Inf"):
        layer(torch.randn(2, 5, 6))
