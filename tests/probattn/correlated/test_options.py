"""Options, input checks, signatures and precision of correlated-GP layers."""

import math

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from probattn import name_layers
from probattn.functional.errors import NumericalError

DIM, HEADS, TOKENS = 6, 2, 5


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_noise_is_sigma_and_is_learned_on_request(kind):
    layer = kind.layer(DIM, HEADS, noise=0.3)
    assert_close(layer.law(layer._given(*[torch.zeros(1, HEADS, 2, 3)] * 4, None)).noise, torch.full((HEADS,), 0.09))
    assert not layer.log_noise.requires_grad
    assert kind.layer(DIM, HEADS, learn_noise=True).log_noise.requires_grad
    assert (layer.log_scales == 0).all()


def test_float32_at_the_papers_noise(kind):
    """σ = 0.1, 64 tokens, two of them equal: no jitter (`JitterWarning` is an error here), near float64."""
    torch.manual_seed(0)
    layer = kind.layer(32, 4, output="mean", collapsed=True)
    x = F.layer_norm(torch.randn(2, 64, 32), (32,))
    x[:, 1] = x[:, 0]
    output, r = layer(x), kind.r_of(layer, x)
    z_o = randn(2, 4, 64, 8).float()

    def through(dtype):
        drawn = kind.copied(layer, collapsed=False, output="draw")
        with poutine.condition(data={"z_o": z_o.to(dtype)}):
            nodes = kind.run(drawn, x.to(dtype))
        return [nodes["z_q"]["fn"].mean, *(nodes[name]["log_prob"] for name in ("z_o", "z_k", "nu"))]

    single = through(torch.float32)
    layer.double()
    for one, two in zip(single, through(torch.float64), strict=True):
        assert_close(one.double(), two, atol=1e-3, rtol=1e-3)
    assert output.dtype == torch.float32
    assert_close(output.double(), layer(x.double()), atol=1e-3, rtol=1e-3)
    assert_close(r.double(), kind.r_of(layer, x.double()), atol=1e-3, rtol=1e-3)


def test_nan_names_the_layer(kind):
    network = torch.nn.Sequential(torch.nn.Identity(), kind.make())
    name_layers(network)
    x = randn(2, TOKENS, DIM)
    x[1, 3, 2] = math.nan
    with pytest.raises(NumericalError, match=f"^{kind.layer.__name__} '1'"):
        network(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"canonical_guide": "map"}, "canonical_guide must be callable or one of posterior, prior, learned, got 'map'"),
        (
            {"canonical_guide": torch.nn.Linear},
            "collapsed=True has R in closed form for guides posterior, prior, learned alone",
        ),
        ({"output": "sample"}, "output must be one of mean, draw, got 'sample'"),
        ({"regulariser_norm": "token"}, "regulariser_norm must be one of scalar, column, example, got 'token'"),
        ({"noise": 0.0}, "noise > 0"),
        ({"noise": -0.1}, "noise > 0"),
        ({"alpha": -1.0}, "alpha ≥ 0"),
        ({"heads": 4}, "multiple of heads"),
    ],
)
def test_bad_options_are_named(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind.make(**options)


@pytest.mark.parametrize("method", ["forward", "attention_matrix"])
@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (randn(2, 5, DIM + 1), None, "project x first"),
        (randn(5, DIM), None, "batch, tokens, 6"),
        (randn(2, 5, DIM), torch.ones(2, 4).bool(), "boolean mask"),
        (randn(2, 5, DIM), torch.ones(2, 5), "boolean mask"),
        (randn(2, 5, DIM), torch.tensor([[True] * 5, [False] * 5]), r"rows \[1\]"),
    ],
)
def test_bad_input_is_named(kind, method, x, mask, message):
    with pytest.raises(ValueError, match=message):
        getattr(kind.make(), method)(x, mask)


def test_signature_holds_what_changes_the_output_and_no_more(kind):
    assert kind.make().signature() == kind.make(canonical_guide="prior").signature()
    assert kind.make(collapsed=False).signature() not in (
        kind.make().signature(),
        kind.make(collapsed=False, canonical_guide="prior").signature(),
    )
    assert kind.make().signature() != kind.make(output="draw").signature()
