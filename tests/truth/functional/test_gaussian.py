"""Densities, divergences, traces and draws of covariances over tokens against torch's multivariate normal."""

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.distributions import kl_divergence as torch_kl
from torch.testing import assert_close

from probattn.functional import gaussian
from probattn.functional.gaussian import Conditional, Dense, LowRank

F64 = torch.float64
B, H, N, D, M = 2, 3, 4, 2, 2
MASK = torch.tensor([[True] * 4, [True, False, True, False]])
KINDS = pytest.mark.parametrize("kind", [Dense, LowRank, Conditional])
MASKED = pytest.mark.parametrize("masked", [False, True])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def padding(masked):
    """The mask as the classes take it, and the number of real tokens."""
    return (MASK.unsqueeze(-2), MASK.sum(-1, keepdim=True)) if masked else (None, N)


def build(kind, masked, seed=0):
    """The covariance as the library holds it, and the whole matrices ``(B, H, N, N)`` written densely."""
    real, count = padding(masked)
    keep = torch.ones(B, N, dtype=torch.bool) if real is None else MASK
    pairs = (keep[:, :, None] & keep[:, None, :])[:, None]
    if kind is Dense:
        root = randn(B, H, N, N, seed=seed)
        dense = (root @ root.mT + torch.eye(N, dtype=F64)) * pairs
        dense = dense + torch.diag_embed((~keep).to(F64))[:, None]
        return Dense(torch.linalg.cholesky(dense), count, real), dense
    if kind is Conditional:
        return conditional(masked, seed, pairs)
    factor = randn(B, H, N, M, seed=seed) * keep[:, None, :, None]
    noise = randn(B, H, N, seed=seed + 20).abs() + 0.3
    dense = factor @ factor.mT + torch.diag_embed(noise)
    return LowRank(factor, noise, real, count), dense


def conditional(masked, seed, pairs):
    """Σ = P − P Aᵀ M⁻¹ A P, M = A P Aᵀ + S, written out; the identity at padding."""
    (prior, p), (noise, s) = build(Dense, masked, seed + 30), build(Dense, masked, seed + 40)
    a = randn(B, H, N, N, seed=seed + 50) * pairs
    m = a @ p @ a.mT + s
    dense = p - p @ a.mT @ torch.linalg.solve(m, a @ p)
    marginal = Dense(torch.linalg.cholesky(m), prior.count, prior.real)
    return Conditional(prior, lambda: noise, lambda: marginal, (a @ prior.tril).mT), (dense + dense.mT) / 2


def real_block(matrix, b, masked):
    """Rows and columns of the real tokens of example b."""
    keep = MASK[b] if masked else torch.ones(N, dtype=torch.bool)
    return matrix[keep][:, keep]


def real_rows(x, b, masked):
    return x[MASK[b]] if masked else x


def columns(masked, seed=5, per=D):
    """Values at tokens, 0 at padding."""
    x = randn(B, H, N, per, seed=seed)
    return x * MASK[:, None, :, None] if masked else x


@KINDS
@MASKED
def test_log_density_is_torchs_over_real_tokens(kind, masked):
    covariance, dense = build(kind, masked)
    x = columns(masked)
    expected = torch.zeros(B, H, dtype=F64)
    for b in range(B):
        for h in range(H):
            block = real_block(dense[b, h], b, masked)
            normal = MultivariateNormal(torch.zeros(len(block), dtype=F64), block)
            for d in range(D):
                expected[b, h] += normal.log_prob(real_rows(x[b, h, :, d], b, masked))
    assert_close(covariance.log_density(x), expected)
    assert covariance.shape == (B, H, N)


PAIRS = [(Dense, Dense), (LowRank, LowRank), (LowRank, Dense), (Dense, Conditional), (LowRank, Conditional)]
PAIRS += [("its own", kind) for kind in (Dense, LowRank, Conditional)]


@pytest.mark.parametrize(("first", "second"), PAIRS)
@MASKED
def test_kl_and_relative_trace_are_torchs_over_real_tokens(first, second, masked):
    """KL(N(m, second) ‖ N(0, first)), for the pairs that have it in closed form."""
    q, q_dense = build(second, masked, seed=7)
    p, p_dense = (q, q_dense) if first == "its own" else build(first, masked)
    if (first, second) == ("its own", Conditional):  # the prior that it was conditioned from
        p, p_dense = q.prior, q.prior.tril @ q.prior.tril.mT
    loc = columns(masked, seed=9)
    kl, trace = torch.zeros(2, B, H, dtype=F64)
    for b in range(B):
        for h in range(H):
            p_block, q_block = real_block(p_dense[b, h], b, masked), real_block(q_dense[b, h], b, masked)
            zero = torch.zeros(len(p_block), dtype=F64)
            trace[b, h] = torch.trace(torch.linalg.solve(p_block, q_block)) - len(p_block)
            for d in range(D):
                posterior = MultivariateNormal(real_rows(loc[b, h, :, d], b, masked), q_block)
                kl[b, h] += torch_kl(posterior, MultivariateNormal(zero, p_block))
    assert_close(q.relative_trace(p), trace)
    assert_close(gaussian.kl_divergence(loc, q, p), kl)


def test_a_pair_without_a_closed_form_says_so():
    low, dense = build(LowRank, False)[0], build(Dense, False)[0]
    with pytest.raises(NotImplementedError, match="LowRank Σ and Dense P"):
        gaussian.kl_divergence(columns(False), low, dense)


@KINDS
@MASKED
def test_moments_of_the_draws(kind, masked):
    covariance, dense = build(kind, masked)
    torch.manual_seed(0)
    number = 20_000
    noise = covariance.draw(torch.Size((number, B, H, N, D)))
    for b in range(B):
        keep = MASK[b] if masked else torch.ones(N, dtype=torch.bool)
        for h in range(H):
            block = real_block(dense[b, h], b, masked)
            joint = noise[:, b, h][:, keep].flatten(1)
            expected = torch.kron(block, torch.eye(D, dtype=F64))
            variance = expected.diagonal()
            assert (joint.mean(0).abs() < 5 * (variance / number).sqrt()).all()
            error = torch.outer(variance, variance).sqrt() * (2 / number) ** 0.5
            assert ((joint.T.cov() - expected).abs() < 5 * error).all()
    if masked:
        assert (noise[:, 1, :, ~MASK[1]] == 0).all()


@KINDS
def test_variance_is_the_diagonal(kind):
    covariance, dense = build(kind, False)
    assert_close(covariance.variance(), dense.diagonal(dim1=-2, dim2=-1))


def test_gradcheck():
    lower = randn(1, 3, 3).tril() + 2 * torch.eye(3, dtype=F64)
    inputs = (randn(1, 3, 2, seed=1), lower, randn(1, 3, seed=2).abs() + 0.5, randn(1, 3, 2, seed=3), randn(1, 3).exp())
    inputs = tuple(x.detach().requires_grad_() for x in inputs)

    def function(loc, tril, scale, factor, noise):
        dense, other = Dense(tril.tril(), 3), Dense(tril.tril() * scale.unsqueeze(-1), 3)
        low, lower = LowRank(factor, noise, None, 3), LowRank(factor * 2, scale, None, 3)
        terms = [each.log_density(loc) for each in (dense, other, low, lower)]
        terms += [gaussian.kl_divergence(loc, q, p) for q, p in ((low, lower), (lower, low), (dense, other))]
        return torch.stack(terms)

    assert torch.autograd.gradcheck(function, inputs)
