"""The objective of correlated-GP layers: the regulariser, both ELBOs, guides of z_o, α, gradients."""

import functools

import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from torch.testing import assert_close

from probattn.functional.correlated import Canonical
from probattn.local_sites import local_posteriors
from probattn.weights import alpha

DIM, HEADS, TOKENS = 6, 2, 5
GUIDES = ["posterior", "prior", "learned"]
COLLAPSED = pytest.mark.parametrize("collapsed", [True, False], ids=["collapsed", "through z_o"])
MASK = torch.tensor([[True] * 5, [True, False, True, True, False], [False, True, False, False, False]])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("per", ["scalar", "column", "example"])
@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_closed_regulariser_is_the_bound_in_loops(kind, guide, per, mask):
    layer, x = kind.make(canonical_guide=guide, regulariser_norm=per, alpha=0.7), randn(3, TOKENS, DIM)
    r = kind.r_of(layer, x, mask)
    assert r.shape == (3,)
    for b, rows, heads in kind.loops(layer, x, mask):
        count = {"scalar": DIM * len(rows), "column": DIM, "example": 1}[per]
        assert_close(r[b], 0.7 * sum(head.bound(guide) for head in heads) / count)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("output", ["mean", "draw"])
@pytest.mark.parametrize("guide", GUIDES)
def test_both_elbos_are_alpha_r_in_closed_form(kind, guide, output, elbo):
    """A draw of the output costs nothing: it is drawn from its own predictive."""
    layer, x = kind.make(canonical_guide=guide, output=output, regulariser_norm="example"), randn(3, TOKENS, DIM)
    expected = sum(head.bound(guide) for _, _, heads in kind.loops(layer, x, MASK) for head in heads)
    assert_close(kind.loss_of(elbo, layer, x, MASK), -expected)
    with alpha(0.3):
        assert_close(kind.loss_of(elbo, layer, x, MASK), -0.3 * expected)


@pytest.mark.parametrize(
    ("guide", "elbo"),
    [
        ("posterior", Trace_ELBO),
        ("posterior", TraceMeanField_ELBO),
        pytest.param("prior", Trace_ELBO, marks=pytest.mark.slow),
        ("prior", TraceMeanField_ELBO),
        ("learned", Trace_ELBO),
        pytest.param("learned", TraceMeanField_ELBO, marks=pytest.mark.slow),
    ],
)
def test_both_elbos_are_alpha_r_in_expectation_through_z_o(kind, guide, elbo):
    """The bound of its guide, below the log marginal; that of the output, drawn or not, costs nothing."""
    layer, copies = (
        kind.make(canonical_guide=guide, collapsed=False, output="draw", regulariser_norm="example", moved=0.1),
        500,
    )
    x, mask = randn(1, TOKENS, DIM).expand(copies, -1, -1), MASK[1:2].expand(copies, -1)
    ((_, _, heads),) = kind.loops(layer, x[:1], mask[:1])
    expected = sum(head.bound(guide, collapsed=False) for head in heads)
    assert expected < sum(head.log_marginal() for head in heads)
    torch.manual_seed(0)
    with torch.no_grad():
        estimates = -torch.stack([kind.loss_of(elbo, layer, x, mask) for _ in range(20)]) / copies
    error = estimates.std() / 20**0.5
    assert error < 0.02 * expected.abs()
    assert (estimates.mean() - expected).abs() < 4 * error
    with alpha(0.3):
        scaled = -kind.loss_of(elbo, layer, x, mask) / copies
    assert (scaled - 0.3 * expected).abs() < 0.3 * 5 * estimates.std()


def test_every_draw_from_the_posterior_gives_the_weighted_evidence_of_the_keys(kind):
    """w [log p(z_k | z_o) + log p(z_o) − log q(z_o)] = w log p(z_k) whatever z_o: Bayes, to rounding."""
    layer, x = kind.make(collapsed=False, alpha=0.7), randn(3, TOKENS, DIM)
    for seed in range(3):
        torch.manual_seed(seed)
        with local_posteriors():
            drawn = kind.run(layer, x, MASK)["z_o"]["value"]
        nodes = kind.run(poutine.condition(layer, data={"z_o": drawn}), x, MASK)
        z_o = nodes["z_o"]
        terms = nodes["z_k"]["log_prob"] + z_o["log_prob"]
        terms = terms - z_o["infer"]["weight"] * z_o["infer"]["posterior"].log_prob(drawn)
        for b, rows, heads in kind.loops(layer, x, MASK):
            assert_close(terms[b], 0.7 / (DIM * len(rows)) * sum(head.evidence() for head in heads))


@COLLAPSED
def test_alpha_of_layer_and_handler_multiply(kind, collapsed):
    x = randn(3, TOKENS, DIM)

    def log_probs(weight, handled):
        torch.manual_seed(1)
        layer = kind.make(alpha=weight, collapsed=collapsed, canonical_guide="learned", output="draw")
        with alpha(handled):
            nodes = kind.run(layer, x, MASK)
        return {name: node["log_prob"] for name, node in nodes.items() if node["type"] == "sample"}

    once, twice = log_probs(1.0, 1.0), log_probs(0.5, 0.3)
    assert len(once) == (2 if collapsed else 4)
    for name, log_prob in once.items():
        assert_close(twice[name], log_prob if name == "z_q" else 0.15 * log_prob)
    off = log_probs(0.5, 0.0)
    assert all((off[name] == 0).all() for name in off if name != "z_q")


def test_without_alpha_z_o_is_drawn_from_its_guide_and_weighs_nothing(kind):
    layer, x = kind.make(collapsed=False, alpha=0, output="draw", canonical_guide="learned"), randn(3, TOKENS, DIM)
    with local_posteriors():
        site = kind.run(layer, x, MASK)["z_o"]
    assert (site["log_prob"] == 0).all()
    assert site["value"].std() > 0.1
    assert kind.loss_of(Trace_ELBO, layer, x, MASK) == kind.loss_of(TraceMeanField_ELBO, layer, x, MASK) == 0


def test_learned_guide_starts_at_the_prior(kind):
    x = randn(3, TOKENS, DIM)
    start = kind.layer(DIM, HEADS, canonical_guide="learned", output="mean").double()
    site = kind.run(start, x, MASK)["z_o"]
    assert_close(site["infer"]["posterior"].mean, torch.zeros_like(site["value"]))
    drawn, prior = kind.covariance(site["infer"]["posterior"].covariance), kind.covariance(site["fn"].covariance)
    assert_close(drawn, prior, rtol=1e-4, atol=1e-4)
    options = {"output": "mean", "collapsed": True}
    layers = [kind.layer(DIM, HEADS, canonical_guide=guide, **options).double() for guide in ("prior", "learned")]
    layers[1].load_state_dict(layers[0].state_dict(), strict=False)
    assert_close(kind.r_of(layers[1], x, MASK), kind.r_of(layers[0], x, MASK), rtol=1e-4, atol=0)


class Shifted(torch.nn.Module):
    """A guide of one's own: the prior about a mean that is linear in the token, as `Canonical` or as a distribution."""

    def __init__(self, dim, heads, *, plain):
        super().__init__()
        self.linear, self.heads, self.plain = torch.nn.Linear(dim, dim), heads, plain

    def forward(self, law, x):
        loc = self.linear(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
        if self.plain:
            return dist.Normal(loc, 0.5).to_event(3)
        return Canonical(loc, law.prior)


@pytest.mark.parametrize("plain", [True, False], ids=["distribution", "canonical"])
def test_a_guide_of_ones_own(kind, plain):
    """z_o is drawn about its mean, both ELBOs agree with its bound in expectation, and it is trained."""
    guide = functools.partial(Shifted, plain=plain)
    layer, copies = (
        kind.make(collapsed=False, canonical_guide=guide, output="draw", regulariser_norm="example", moved=0.1),
        500,
    )
    assert layer.canonical_guide == "Shifted"
    x = randn(1, TOKENS, DIM)
    q = kind.run(layer, x)["z_o"]["infer"]["posterior"]
    loc = layer.canonical.linear(x).detach().unflatten(-1, (HEADS, -1)).transpose(-3, -2)
    assert_close(q.mean, loc)
    ((_, _, heads),) = kind.loops(layer, x)
    for h, head in enumerate(heads):
        head.own = loc[0, h], 0.25 * kind.identity(TOKENS) if plain else head.prior[1]
    expected = sum(head.bound("own") for head in heads)
    for elbo in (Trace_ELBO, TraceMeanField_ELBO):
        torch.manual_seed(0)
        with torch.no_grad():
            losses = torch.stack([kind.loss_of(elbo, layer, x.expand(copies, -1, -1)) for _ in range(20)]) / copies
        assert (losses.mean() + expected).abs() < 4 * losses.std() / 20**0.5
        assert losses.std() < 0.05 * expected.abs()
        layer.zero_grad()
        kind.loss_of(elbo, layer, x).backward()
        assert all((p.grad.abs() > 0).any() for p in layer.canonical.parameters())


@COLLAPSED
@pytest.mark.parametrize("guide", GUIDES)
def test_every_parameter_gets_a_gradient_from_the_regulariser_alone(kind, guide, collapsed):
    layer = kind.make(canonical_guide=guide, collapsed=collapsed, learn_noise=True)
    kind.loss_of(Trace_ELBO, layer, randn(3, TOKENS, DIM), MASK).backward()
    for name, parameter in layer.named_parameters():
        if name.startswith("out."):
            assert parameter.grad is None
        else:
            assert (parameter.grad.abs() > 1e-8).all(), name


@COLLAPSED
@pytest.mark.parametrize("output", ["mean", "draw"])
def test_every_parameter_of_the_program_gets_a_gradient_from_the_output(kind, output, collapsed):
    layer = kind.make(output=output, learn_noise=True, collapsed=collapsed)
    with local_posteriors():
        output = layer(randn(3, TOKENS, DIM), MASK)
    output.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert (parameter.grad.abs() > 1e-8).all(), name
