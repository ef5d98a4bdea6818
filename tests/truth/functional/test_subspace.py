"""Subspace iteration on the attention kernel against dense SVD in float64."""

import exact_ksvd
import pytest
import torch
from torch.testing import assert_close

from probattn.functional import ksvd, subspace


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def features_of(tokens=64, dim=64, width=32, *, batch=16, common=1.0):
    """Features of queries and keys of correlated tokens, as in a network: a common part and decaying directions."""
    scale = torch.logspace(0, -1.5, dim, dtype=torch.float64)
    x = randn(batch, tokens, dim) * scale + common * 0.3 * randn(batch, 1, dim, seed=1)
    return ksvd.cosine_features(torch.stack([x @ w for w in randn(2, dim, width, seed=2)]))


def low_rank(tokens=12, width=6, rank=3, *, batch=4):
    """Features whose kernel has that rank."""
    return ksvd.cosine_features(randn(2, batch, tokens, rank) @ randn(rank, width, seed=1))


def iterated(phi, rank, steps, *, seed=3):
    return subspace.iterate(subspace.grams(phi), randn(phi.shape[-1], rank, seed=seed), steps)


def test_inverse_root_is_that_of_the_eigendecomposition():
    basis, _ = torch.linalg.qr(randn(20, 6, 6))
    values = torch.logspace(1, -6, 6, dtype=torch.float64)
    expected = (basis * (values + 1e-8 * values.sum()).rsqrt()) @ basis.mT
    assert_close(subspace.inverse_sqrt((basis * values) @ basis.mT), expected, rtol=1e-8, atol=1e-6)
    low = subspace.inverse_sqrt(((basis * values) @ basis.mT).float())
    expected = (basis * (values + 1e-6 * values.sum()).rsqrt()) @ basis.mT
    assert (low - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize("common", [1.0, 3.0])
def test_two_steps_from_a_random_start_capture_98_percent_of_the_best_energy(common):
    phi = features_of(common=common)
    best = torch.linalg.svdvals(phi[0] @ phi[1].mT)[:, :8].square().sum(-1)
    w_e, w_r = iterated(phi, 8, 2)
    one, _ = iterated(phi, 8, 1)
    share = (phi[0] @ w_e).square().sum((-2, -1)) / best
    assert share.mean() > 0.98
    assert ((share > 0.97) & (share <= 1)).all()
    assert (share > (phi[0] @ one).square().sum((-2, -1)) / best).all()
    assert ((phi[1] @ w_r).square().sum((-2, -1)) >= (phi[0] @ w_e).square().sum((-2, -1)) - 1e-9).all()


@pytest.mark.parametrize("seed", [3, 4])
def test_a_kernel_of_rank_s_is_decomposed_exactly(seed):
    """E Eᵀ = H_e Λ² H_eᵀ, R Rᵀ = H_r Λ² H_rᵀ, and E Rᵀ = H_e Λ² H_rᵀ, whatever the start."""
    phi = low_rank()
    w_e, w_r = iterated(phi, 3, 1, seed=seed)
    e, r = phi[0] @ w_e, phi[1] @ w_r
    exact = exact_ksvd.singular_triplets(phi[0], phi[1], 3)
    for left, right, h_left, h_right in (
        (e, e, exact.h_e, exact.h_e),
        (r, r, exact.h_r, exact.h_r),
        (e, r, exact.h_e, exact.h_r),
    ):
        expected = (h_left * exact.values.square().unsqueeze(-2)) @ h_right.mT
        assert_close(left @ right.mT, expected, rtol=1e-6, atol=1e-6)
    assert_close(subspace.singular_values(subspace.grams(phi), w_e), exact.values, rtol=1e-6, atol=1e-6)


def test_covariances_of_the_scores_do_not_depend_on_the_basis_of_the_start():
    phi, start = features_of(), randn(32, 4, seed=3)
    mixed = start @ randn(4, 4, seed=5)
    gram = subspace.grams(phi)
    (e, r), (other_e, other_r) = (
        [feature @ weight for feature, weight in zip(phi, subspace.iterate(gram, w, 2), strict=True)]
        for w in (start, mixed)
    )
    for left, right, other_left, other_right in (
        (e, e, other_e, other_e),
        (r, r, other_r, other_r),
        (e, r, other_e, other_r),
    ):
        assert_close(left @ right.mT, other_left @ other_right.mT, rtol=1e-5, atol=1e-5)


def test_gradients():
    phi = low_rank(tokens=5, width=4, rank=4, batch=1).requires_grad_()
    start = randn(4, 2, seed=3).requires_grad_()

    def function(phi, start):
        return subspace.iterate(subspace.grams(phi), start, 2)

    assert torch.autograd.gradcheck(function, (phi, start))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["repeated", "fewer than s", "one", "none", "no kernel"])
def test_degenerate_kernels_have_finite_values_and_gradients(case, dtype):
    phi = low_rank(tokens=6, width=6, rank=6).to(dtype)
    if case == "repeated":
        phi = phi[:, :, :1].expand_as(phi).clone()
    elif case == "no kernel":
        phi[..., 0, :, 3:], phi[1, ..., :3] = 0.0, 0.0
        phi[0, ..., 3:] = 0.0
    else:
        phi[:, :, {"fewer than s": 3, "one": 1, "none": 0}[case] :] = 0.0
    phi = phi.requires_grad_()
    weights = subspace.iterate(subspace.grams(phi), randn(6, 4, seed=3).to(dtype), 2)
    scores = [feature @ weight for feature, weight in zip(phi, weights, strict=True)]
    sum(score.square().sum() + score.sum() for score in scores).backward()
    assert all(score.isfinite().all() for score in scores)
    assert phi.grad.isfinite().all()
    kernel = phi[0] @ phi[1].mT
    covariance = scores[0] @ scores[0].mT
    tolerance = {torch.float32: 5e-3, torch.float64: 1e-6}[dtype]
    values = torch.linalg.eigvalsh((kernel @ kernel.mT - covariance).detach().double())
    assert (values[:, 0] > -tolerance * kernel.square().sum((-2, -1)) - 1e-9).all()
