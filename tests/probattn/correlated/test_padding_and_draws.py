"""Padding, permutations and draws of correlated-GP layers."""

import math

import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO
from torch.testing import assert_close

from probattn import draws
from probattn.draws import at_mean
from probattn.local_sites import local_posteriors

DIM, HEADS, TOKENS = 6, 2, 5
GUIDES = ["posterior", "prior", "learned"]
COLLAPSED = pytest.mark.parametrize("collapsed", [True, False], ids=["collapsed", "through z_o"])
MASK = torch.tensor([[True] * 5, [True, False, True, True, False], [False, True, False, False, False]])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("garbage", [1e6, math.nan, math.inf])
@COLLAPSED
@pytest.mark.parametrize("guide", GUIDES)
def test_padding_changes_nothing(kind, guide, collapsed, garbage):
    layer, x = kind.make(canonical_guide=guide, collapsed=collapsed, output="draw"), randn(3, TOKENS, DIM)
    other = x.where(MASK.unsqueeze(-1), garbage)

    def outcome(x):
        torch.manual_seed(0)
        layer.zero_grad()
        x = x.clone().requires_grad_()
        nodes = kind.run(layer, x, MASK)
        output, law = nodes["_RETURN"]["value"], nodes["z_q"]["fn"]
        torch.manual_seed(0)
        loss = kind.loss_of(Trace_ELBO, layer, x, MASK)
        (loss + output[MASK].square().sum()).backward()
        grads = [p.grad for p in layer.parameters() if p.requires_grad]
        assert (x.grad[~MASK] == 0).all()
        return output[MASK], law.mean.mT[MASK[:, None, None].expand_as(law.mean.mT)], loss.detach(), *grads, x.grad

    assert_close(outcome(other), outcome(x))


@pytest.mark.parametrize("guide", GUIDES)
def test_a_padded_sentence_is_the_sentence_alone(kind, guide):
    layer, x = kind.make(canonical_guide=guide, output="draw", alpha=0.7), randn(3, TOKENS, DIM)
    padded = kind.run(layer, x, MASK)
    for b in range(3):
        alone = kind.run(layer, x[b : b + 1, MASK[b]])
        law, other = padded["z_q"]["fn"], alone["z_q"]["fn"]
        rows = MASK[b].nonzero().flatten()
        assert_close(law.mean[b, :, rows], other.mean[0])
        assert_close(kind.covariance(law.covariance)[b][:, rows[:, None], rows], kind.covariance(other.covariance)[0])
        assert_close(padded["regulariser"]["log_prob"][b], alone["regulariser"]["log_prob"][0])
    mean = kind.make(canonical_guide=guide, alpha=0)
    for b in range(3):
        assert_close(mean(x, MASK)[b, MASK[b]], mean(x[b : b + 1, MASK[b]])[0])


def test_a_padded_sentence_draws_what_it_draws_alone(kind):
    """Given z_o, and the law of z_o itself."""
    layer, x = kind.make(collapsed=False, output="draw", alpha=0.7), randn(3, TOKENS, DIM)
    z_o = randn(3, HEADS, TOKENS, DIM // HEADS, seed=5).where(MASK[:, None, :, None], 0.0)
    with poutine.condition(data={"z_o": z_o}):
        padded = kind.run(layer, x, MASK)
    for b in range(3):
        rows = MASK[b].nonzero().flatten()
        with poutine.condition(data={"z_o": z_o[b : b + 1, :, rows]}):
            alone = kind.run(layer, x[b : b + 1, rows])
        for name in ("z_o", "z_k", "nu"):
            assert_close(padded[name]["log_prob"][b], alone[name]["log_prob"][0])
        q, other = padded["z_o"]["infer"]["posterior"], alone["z_o"]["infer"]["posterior"]
        assert_close(q.mean[b, :, rows], other.mean[0])
        assert_close(q.variance[b, :, rows], other.variance[0])
        assert_close(padded["z_q"]["fn"].mean[b, :, rows], alone["z_q"]["fn"].mean[0])


@pytest.mark.parametrize("guide", GUIDES)
def test_permuting_tokens_permutes_the_output(kind, guide):
    layer, x, order = kind.make(canonical_guide=guide), randn(3, TOKENS, DIM), [3, 0, 4, 2, 1]
    assert_close(layer(x[:, order]), layer(x)[:, order])
    assert_close(kind.r_of(layer, x[:, order], MASK[:, order]), kind.r_of(layer, x, MASK))
    drawn = kind.make(canonical_guide=guide, output="draw")
    straight, permuted = (kind.run(drawn, at)["z_q"]["fn"].covariance for at in (x, x[:, order]))
    assert_close(kind.covariance(permuted), kind.covariance(straight)[..., order, :][..., order])


@pytest.mark.parametrize("guide", GUIDES)
def test_leading_draws_pass_through(kind, guide):
    layer, x = kind.make(canonical_guide=guide, output="draw"), randn(4, 2, 3, TOKENS, DIM)
    nodes = kind.run(layer, x, MASK)
    assert nodes["_RETURN"]["value"].shape == x.shape
    for s in range(4):
        for p in range(2):
            one = kind.run(layer, x[s, p], MASK)
            assert_close(nodes["z_q"]["fn"].mean[s, p], one["z_q"]["fn"].mean)
            assert_close(nodes["regulariser"]["log_prob"][s, p], one["regulariser"]["log_prob"])
    nodes = kind.run(kind.make(canonical_guide=guide, output="draw", collapsed=False), x, MASK)
    assert all(nodes[name]["log_prob"].shape == (4, 2, 3) for name in ("z_o", "z_k", "nu", "z_q"))


def test_non_contiguous_one_head_batch_of_one_and_one_token(kind):
    layer = kind.make(heads=1)
    x = randn(DIM, TOKENS, 1).permute(2, 1, 0)
    assert not x.is_contiguous()
    for at in (x, x[:, :1]):
        ((_, _, heads),) = kind.loops(layer, at)
        assert_close(layer(at)[0], layer.out(heads[0].nu))
        assert_close(kind.r_of(layer, at)[0], heads[0].log_marginal() / at.numel())


@COLLAPSED
def test_draws_have_the_predictive_moments(kind, collapsed):
    """Mean ν and covariance V[z_q | z_k] + σ²I, within 5 standard errors; heads and columns are independent.

    So it is in closed form and through z_o drawn from p(z_o | z_k).
    """
    layer, x, number = kind.make(output="draw", alpha=0, collapsed=collapsed), randn(1, 3, DIM), 20_000
    torch.manual_seed(0)
    with torch.no_grad(), draws(number), local_posteriors():
        nodes = kind.run(layer, x)
    z_q = nodes["z_q"]["value"]
    assert z_q.shape == (number, 1, HEADS, 3, layer.head_dim)
    assert_close(nodes["_RETURN"]["value"], layer.out(z_q.transpose(-3, -2).flatten(-2)))
    ((_, _, heads),) = kind.loops(layer, x)
    loc = torch.cat([head.nu.flatten() for head in heads])
    columns = kind.identity(layer.head_dim)
    expected = torch.block_diag(*(torch.kron(head.predictive, columns) for head in heads))
    centred, variance = z_q.flatten(1) - loc, expected.diagonal()
    assert (centred.mean(0).abs() < 5 * (variance / number).sqrt()).all()
    error = ((variance[:, None] * variance + expected**2) / number).sqrt()
    assert ((centred.T @ centred / number - expected).abs() < 5 * error).all()


@pytest.mark.parametrize("output", ["mean", "draw"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_at_the_mean_both_forms_put_out_nu(kind, output, mask):
    x = randn(3, TOKENS, DIM)
    expected = kind.make(alpha=0)(x, mask)
    keep = torch.ones(3, TOKENS).bool() if mask is None else mask
    with at_mean(), local_posteriors():
        assert_close(kind.make(output=output, collapsed=False)(x, mask)[keep], expected[keep])
        assert_close(kind.make(output=output)(x, mask)[keep], expected[keep])


def test_examples_are_drawn_on_their_own(kind):
    x = randn(1, TOKENS, DIM).expand(3, -1, -1)
    with draws(2), local_posteriors():
        nodes = kind.run(kind.make(collapsed=False, output="draw"), x)
    for name in ("z_o", "z_q"):
        assert nodes[name]["value"].shape == (2, 3, HEADS, TOKENS, DIM // HEADS)
        assert nodes[name]["value"].flatten(0, 1)[:, 0, 0, 0].unique().numel() == 6
