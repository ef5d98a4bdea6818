"""KEP-SVGP's closed forms against brute force and torch.distributions, in float64 (MATH 1, tests a-d, f)."""

import exact_ksvd
import pytest
import torch
from torch.testing import assert_close

from probattn.functional import kep_svgp, ksvd

N, H, S = 6, 2, 3


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tril(*shape, seed=0):
    lower = randn(*shape, shape[-1], seed=seed).tril(-1)
    return lower + torch.diag_embed(randn(*shape, seed=seed + 1).exp())


def linear_map(function, size):
    """Matrix of a linear function of a vector, column by column."""
    return torch.stack([function(column).flatten() for column in torch.eye(size, dtype=torch.float64)], dim=-1)


def merged(kind, e, r):
    weights = randn(N, 2 * N, seed=11)
    merges = {
        "e": lambda: e,
        "r": lambda: r,
        "add": lambda: e + r,
        "concat": lambda: kep_svgp.merge_tokens(e, r, weights),
    }
    return merges[kind]()


@pytest.mark.parametrize("kind", ["e", "r", "add", "concat"])
def test_law_of_the_function_values_is_equation_16(kind):
    """Exact: F is linear in u, so its covariance is the map's, applied to S of each output."""
    e, r, lam = randn(H, N, S), randn(H, N, S, seed=1), randn(H, S, seed=2).exp()
    loc, scale_tril = randn(H, S, S, seed=3), tril(H, S, S, seed=4)
    scores = merged(kind, e, r)
    moments = kep_svgp.marginals(scores, lam, loc, scale_tril)
    assert_close(moments.mean, kep_svgp.function_values(scores, lam, loc).mT)
    for h in range(H):
        for d in range(S):

            def of_output(u_d, h=h, d=d):
                u = torch.zeros(H, S, S, dtype=torch.float64)
                u[h, d] = u_d
                return kep_svgp.function_values(scores, lam, u)[h, :, d]

            matrix = linear_map(of_output, S)
            covariance = scale_tril[h, d] @ scale_tril[h, d].T
            assert_close(moments.covariance[h, d], matrix @ covariance @ matrix.T)
            inverse = torch.diag(1 / lam[h])
            assert_close(moments.mean[h, d], scores[h] @ inverse @ loc[h, d])
            assert_close(
                moments.covariance[h, d], scores[h] @ inverse @ covariance @ inverse @ scores[h].T, atol=1e-10, rtol=0
            )


def test_merging_scores_is_merging_function_values():
    e, r, lam, u = randn(H, N, S), randn(H, N, S, seed=1), randn(H, S, seed=2).exp(), randn(H, S, S, seed=3)
    f_e, f_r = kep_svgp.function_values(e, lam, u), kep_svgp.function_values(r, lam, u)
    a, b = randn(N, 4, seed=4), randn(2 * N, 4, seed=5)
    stacked = torch.cat((f_e, f_r), dim=-2)
    assert_close(kep_svgp.function_values(e + r, lam, u), f_e + f_r)
    assert_close(kep_svgp.function_values(kep_svgp.merge_tokens(e, r, a @ b.T), lam, u), (a @ b.T) @ stacked)
    assert_close(kep_svgp.merge_tokens_lowrank(e, r, a, b), kep_svgp.merge_tokens(e, r, a @ b.T))


def test_kl_is_proposition_4_1_written_out():
    lam, loc, scale_tril = randn(1, S, seed=2).exp(), randn(1, S, S, seed=3), tril(1, S, S, seed=4)
    precision = torch.diag(lam[0] ** -2)
    expected = 0.0
    for d in range(S):
        s = scale_tril[0, d] @ scale_tril[0, d].T
        m = loc[0, d]
        log_ratio = torch.logdet(torch.diag(lam[0] ** 2)) - torch.logdet(s)
        expected += 0.5 * (torch.trace(precision @ s) + m @ precision @ m + log_ratio - S)
    assert_close(kep_svgp.kl_divergence(loc, scale_tril, lam)[0], expected)


def test_prior_covariance_at_full_rank_is_the_kernel_times_its_transpose():
    phi_q, phi_k = ksvd.cosine_features(randn(N, 4)), ksvd.cosine_features(randn(N, 4, seed=1))
    w_e, w_r, values, _, _ = exact_ksvd.singular_triplets(phi_q, phi_k, 4)
    kernel = phi_q @ phi_k.T
    zero, prior_tril = torch.zeros(1, 4, 4, dtype=torch.float64), torch.diag(values).expand(1, 4, 4, 4)
    for scores, expected in ((phi_q @ w_e, kernel @ kernel.T), (phi_k @ w_r, kernel.T @ kernel)):
        moments = kep_svgp.marginals(scores[None], values[None], zero, prior_tril)
        assert_close(moments.covariance, expected.expand(1, 4, N, N))
