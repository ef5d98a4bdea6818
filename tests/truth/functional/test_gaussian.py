"""Densities, divergences, traces and draws of covariances over tokens against torch's multivariate
normal."""

import pytest
import torch
from float64 import F64, eye64
from sampling import assert_moments, randn
from torch.distributions import MultivariateNormal
from torch.distributions import kl_divergence as torch_kl
from torch.testing import assert_close

from probattn.functional import gaussian
from probattn.functional.gaussian import Conditional, Dense, LowRank

B, H, N, D, M = 2, 3, 4, 2, 2
REAL = {
    False: torch.ones(B, N, dtype=torch.bool),
    True: torch.tensor([[True] * 4, [True, False, True, False]]),
}
KINDS = pytest.mark.parametrize("kind", [Dense, LowRank, Conditional])
MASKED = pytest.mark.parametrize("masked", [False, True])


def build(kind, masked, seed=0):
    """The covariance as the library holds it, and the whole matrices ``(B, H, N, N)`` written
    densely."""
    real, count = (
        (REAL[True].unsqueeze(-2), REAL[True].sum(-1, keepdim=True)) if masked else (None, N)
    )
    keep = REAL[masked][:, None, :, None].to(F64)
    if kind is LowRank:
        factor = randn(B, H, N, M, seed=seed) * keep
        noise = randn(B, H, N, seed=seed + 20).abs() + 0.3
        return LowRank(factor, noise, real, count), factor @ factor.mT + noise.diag_embed()
    root = randn(B, H, N, N, seed=seed + 50) * keep * keep.mT
    if kind is Dense:
        dense = root @ root.mT + eye64(N)
        return Dense(torch.linalg.cholesky(dense), count, real), dense
    # Σ = P − P Aᵀ M⁻¹ A P, M = A P Aᵀ + S, written out; the identity at padding.
    (prior, p), (noise, s) = build(Dense, masked, seed + 30), build(Dense, masked, seed + 40)
    m = root @ p @ root.mT + s
    dense = p - p @ root.mT @ torch.linalg.solve(m, root @ p)
    posterior = gaussian.conditional(prior, (root @ prior.tril).mT, noise)
    return posterior, (dense + dense.mT) / 2


def laws(loc, dense, masked):
    """N(loc, Σ) of the heads and columns ``(H, D)`` over the real tokens of each example."""
    rows = zip(loc, dense, REAL[masked], strict=True)
    return [
        MultivariateNormal(mean[:, keep].mT, matrix[:, None, keep][..., keep])
        for mean, matrix, keep in rows
    ]


def columns(masked, seed=5):
    """Values at tokens, 0 at padding."""
    return randn(B, H, N, D, seed=seed) * REAL[masked][:, None, :, None]


@KINDS
@MASKED
def test_log_density_and_variance_are_torchs_over_real_tokens(kind, masked):
    (covariance, dense), x = build(kind, masked), columns(masked)
    log_density, variance = covariance.log_density(x), covariance.variance()
    for b, law in enumerate(laws(0 * x, dense, masked)):
        assert_close(log_density[b], law.log_prob(x[b][:, REAL[masked][b]].mT).sum(-1))
        assert_close(variance[b][:, REAL[masked][b]], law.variance[:, 0])
    assert covariance.shape == (B, H, N)


PAIRS = [
    (Dense, Dense),
    (LowRank, LowRank),
    (LowRank, Dense),
    (Dense, Conditional),
    (LowRank, Conditional),
]
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
    kl, trace = gaussian.kl_divergence(loc, q, p), q.relative_trace(p)
    for b, (posterior, prior) in enumerate(
        zip(laws(loc, q_dense, masked), laws(0 * loc, p_dense, masked), strict=True)
    ):
        assert_close(kl[b], torch_kl(posterior, prior).sum(-1))
        share = torch.linalg.solve(prior.covariance_matrix[:, 0], posterior.covariance_matrix[:, 0])
        assert_close(trace[b], share.diagonal(dim1=-2, dim2=-1).sum(-1) - share.shape[-1])


@KINDS
@MASKED
def test_moments_of_the_draws(kind, masked):
    covariance, dense = build(kind, masked)
    noise, eye = covariance.draw(torch.Size((20_000, B, H, N, D))), eye64(D)
    for b, law in enumerate(laws(columns(masked), dense, masked)):
        for h in range(H):
            joint = noise[:, b, h, REAL[masked][b]].flatten(1)
            assert_moments(
                joint, torch.zeros_like(joint[0]), torch.kron(law.covariance_matrix[h, 0], eye)
            )
        assert (noise[:, b, :, ~REAL[masked][b]] == 0).all()
