"""KEP-SVGP's closed forms against brute force and torch.distributions, in float64 (MATH 1, tests
a-d, f)."""

import exact_ksvd
import pytest
import torch
from sampling import randn
from torch.testing import assert_close

from probattn.functional import kep_svgp, ksvd

N, H, S = 6, 2, 3


@pytest.fixture
def law():
    """λ, and mean and Cholesky factor of u."""
    tril = randn(H, S, S, S, seed=4).tril(-1) + randn(H, S, S, seed=5).exp().diag_embed()
    return randn(H, S, seed=2).exp(), randn(H, S, S, seed=3), tril


def test_law_of_the_function_values_is_equation_16(law):
    e, (lam, loc, tril) = randn(H, N, S), law
    mean = torch.einsum("hni,hi,hdi->hnd", e, 1 / lam, loc)
    factor = torch.einsum("hni,hi,hdij->hdnj", e, 1 / lam, tril)
    assert_close(kep_svgp.function_values(e, lam, loc), mean)
    moments = kep_svgp.marginals(e, lam, loc, tril)
    assert_close(moments.mean, mean.mT)
    assert_close(moments.covariance, factor @ factor.mT, atol=1e-10, rtol=0)


def test_prior_covariance_at_full_rank_is_the_kernel_times_its_transpose():
    phi_q, phi_k = ksvd.cosine_features(randn(N, 4)), ksvd.cosine_features(randn(N, 4, seed=1))
    w_e, w_r, values, _, _ = exact_ksvd.singular_triplets(phi_q, phi_k, 4)
    kernel = phi_q @ phi_k.T
    zero = torch.zeros(1, 4, 4, dtype=torch.float64)
    prior_tril = torch.diag(values).expand(1, 4, 4, 4)
    for scores, expected in ((phi_q @ w_e, kernel @ kernel.T), (phi_k @ w_r, kernel.T @ kernel)):
        moments = kep_svgp.marginals(scores[None], values[None], zero, prior_tril)
        assert_close(moments.covariance, expected.expand(1, 4, N, N))
