"""The objective of correlated-GP layers: the regulariser R, both ELBOs, guides of z_o, α."""

import functools

import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from correlated_reference import (
    ALL,
    DIM,
    GUIDES,
    HEADS,
    KINDS,
    MASK,
    TOKENS,
    Dense,
    identity,
    loss_of,
    r_of,
)
from correlated_reference import run as run_layer
from elbos import Trace_ELBO, TraceMeanField_ELBO
from sampling import randn
from torch.testing import assert_close

from probattn.functional.correlated import Canonical
from probattn.local_sites import local_posteriors
from probattn.site_info import info_of
from probattn.weights import alpha

NORMS = dict(zip(GUIDES, ("scalar", "column", "example"), strict=True))
REGULARISERS = [(kind, guide, {}) for kind in ALL for guide in GUIDES]
REGULARISERS += [(Dense(), guide, {"noisy_canonical": False}) for guide in GUIDES]
REGULARISERS += [(Dense(), guide, {"noisy_output": False}) for guide in GUIDES]


@pytest.mark.parametrize(("kind", "guide", "options"), REGULARISERS)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_closed_regulariser_is_the_bound(kind, guide, options, mask):
    norm, x = NORMS[guide], randn(3, TOKENS, DIM)
    r = r_of(
        layer := kind.make(canonical_guide=guide, regulariser_norm=norm, alpha=0.7, **options),
        x,
        mask,
    )
    for b, rows, heads in kind.loops(layer, x, mask):
        count = {"scalar": DIM * len(rows), "column": DIM, "example": 1}[norm]
        assert_close(r[b], 0.7 * heads.bound(guide) / count)
        assert heads.bound(guide) <= heads.log_marginal() + 1e-9


@KINDS
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_both_elbos_are_alpha_r_in_closed_form(kind, elbo):
    """A draw of the output costs nothing: it is drawn from its own predictive."""
    layer = kind.make(canonical_guide="learned", output="draw", regulariser_norm="example")
    x = randn(3, TOKENS, DIM)
    expected = sum(heads.bound("learned") for _, _, heads in kind.loops(layer, x, MASK))
    assert_close(loss_of(elbo, layer, x, MASK), -expected)
    with alpha(0.3):
        assert_close(loss_of(elbo, layer, x, MASK), -0.3 * expected)


def assert_bound_in_expectation(layer, elbo, expected, x, mask=None):
    """R by draws of z_o (eq. 42), with α of the handler too."""
    copies, number = 500, 20
    batch = (x.expand(copies, -1, -1),) + (() if mask is None else (mask.expand(copies, -1),))
    with torch.no_grad():
        estimates = -torch.stack([loss_of(elbo, layer, *batch) for _ in range(number)]) / copies
    error = estimates.std() / number**0.5
    assert error < 0.02 * expected.abs()
    assert (estimates.mean() - expected).abs() < 4 * error
    with alpha(0.3):
        assert (
            -loss_of(elbo, layer, *batch) / copies - 0.3 * expected
        ).abs() < 0.3 * 5 * estimates.std()


@KINDS
@pytest.mark.parametrize(
    ("guide", "elbo"),
    [("posterior", Trace_ELBO), ("prior", TraceMeanField_ELBO), ("learned", Trace_ELBO)],
)
def test_both_elbos_are_alpha_r_in_expectation_through_z_o(kind, guide, elbo):
    options = {
        "canonical_guide": guide,
        "collapsed": False,
        "output": "draw",
        "regulariser_norm": "example",
    }
    layer, x, mask = kind.make(moved=0.1, **options), randn(1, TOKENS, DIM), MASK[1:2]
    ((_, _, heads),) = kind.loops(layer, x, mask)
    assert_bound_in_expectation(layer, elbo, heads.bound(guide, collapsed=False), x, mask)


class Shifted(torch.nn.Module):
    """A guide of one's own: the prior about a mean that is linear in the token, as `Canonical` or
    as a distribution."""

    def __init__(self, dim, heads, *, plain):
        super().__init__()
        self.linear, self.heads, self.plain = torch.nn.Linear(dim, dim), heads, plain

    def forward(self, law, x):
        loc = self.linear(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
        return dist.Normal(loc, 0.5).to_event(3) if self.plain else Canonical(loc, law.prior)


@KINDS
@pytest.mark.parametrize(("plain", "elbo"), [(True, Trace_ELBO), (False, TraceMeanField_ELBO)])
def test_a_guide_of_ones_own_has_its_bound_in_expectation(kind, plain, elbo):
    guide = functools.partial(Shifted, plain=plain)
    layer = kind.make(
        collapsed=False, canonical_guide=guide, output="draw", regulariser_norm="example", moved=0.1
    )
    x = randn(1, TOKENS, DIM)
    loc = layer.canonical.linear(x).detach().unflatten(-1, (HEADS, -1)).transpose(-3, -2)
    assert_close(info_of(run_layer(layer, x)["z_o"]).posterior.mean, loc)
    ((_, _, heads),) = kind.loops(layer, x)
    heads.shifted = loc[0], 0.25 * identity(TOKENS) if plain else heads.prior[1]
    assert_bound_in_expectation(layer, elbo, heads.bound("shifted"), x)
    loss_of(elbo, layer, x).backward()
    assert all(p.grad.any() for p in layer.canonical.parameters())


@KINDS
def test_every_draw_from_the_posterior_gives_the_weighted_evidence_of_the_keys(kind):
    """w [log p(z_k | z_o) + log p(z_o) − log q(z_o)] = w log p(z_k) whatever z_o: Bayes, to
    rounding."""
    layer, x = kind.make(collapsed=False, alpha=0.7), randn(3, TOKENS, DIM)
    with local_posteriors():
        drawn = run_layer(layer, x, MASK)["z_o"]["value"]
    nodes = run_layer(poutine.condition(layer, data={"z_o": drawn}), x, MASK)
    terms = nodes["z_k"]["log_prob"] + nodes["z_o"]["log_prob"]
    z_o = info_of(nodes["z_o"])
    terms = terms - z_o.weight * z_o.posterior.log_prob(drawn)
    for b, rows, heads in kind.loops(layer, x, MASK):
        assert_close(terms[b], 0.7 / (DIM * len(rows)) * heads.evidence())


@KINDS
@pytest.mark.parametrize("collapsed", [True, False], ids=["collapsed", "through z_o"])
def test_alpha_of_layer_and_handler_multiply_and_0_leaves_the_draws(kind, collapsed):
    x = randn(3, TOKENS, DIM)

    def log_probs(weight, handled):
        torch.manual_seed(1)
        layer = kind.make(
            alpha=weight, collapsed=collapsed, canonical_guide="learned", output="draw"
        )
        with alpha(handled), local_posteriors():
            nodes = run_layer(layer, x, MASK)
        return {name: node["log_prob"] for name, node in nodes.items() if node["type"] == "sample"}

    once, twice, without = log_probs(1.0, 1.0), log_probs(0.5, 0.3), log_probs(0.5, 0.0)
    assert set(once) == {"z_q"} | ({"regulariser"} if collapsed else {"z_o", "z_o_kl", "z_k", "nu"})
    for name, log_prob in once.items():
        assert_close(twice[name], log_prob if name == "z_q" else 0.15 * log_prob)
        assert name == "z_q" or not without[name].any()
    layer = kind.make(alpha=0.0, collapsed=collapsed, canonical_guide="learned", output="draw")
    assert loss_of(Trace_ELBO, layer, x, MASK) == loss_of(TraceMeanField_ELBO, layer, x, MASK) == 0


@KINDS
@pytest.mark.parametrize("collapsed", [True, False], ids=["collapsed", "through z_o"])
@pytest.mark.parametrize("guide", GUIDES)
def test_every_parameter_gets_a_gradient_from_the_regulariser_alone(kind, guide, collapsed):
    layer = kind.make(canonical_guide=guide, collapsed=collapsed, learn_noise=True)
    loss_of(Trace_ELBO, layer, randn(3, TOKENS, DIM), MASK).backward()
    for name, parameter in layer.named_parameters():
        assert (parameter.grad is None) == name.startswith("out.")
        assert name.startswith("out.") or (parameter.grad.abs() > 1e-8).all(), name
