"""Subspace iteration on the attention kernel against dense SVD in float64."""

import pytest
import torch
from sampling import randn
from torch.testing import assert_close

from probattn.functional import ksvd, subspace


def features_of(tokens=64, dim=64, width=32, *, batch=16, common=1.0):
    """Features of queries and keys of correlated tokens, as in a network: a common part and
    decaying directions."""
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
    matrix = (basis * values) @ basis.mT
    expected, low = (
        (basis * (values + jitter * values.sum()).rsqrt()) @ basis.mT for jitter in (1e-8, 1e-6)
    )
    assert_close(subspace.inverse_sqrt(matrix), expected, rtol=1e-8, atol=1e-6)
    assert (subspace.inverse_sqrt(matrix.float()) - low).norm() < 1e-2 * low.norm()


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
    assert (
        (phi[1] @ w_r).square().sum((-2, -1)) >= (phi[0] @ w_e).square().sum((-2, -1)) - 1e-9
    ).all()


def scores(phi, weights):
    """E and R below each other: products of the rows are E Eᵀ, E Rᵀ and R Rᵀ."""
    return torch.cat(
        [feature @ weight for feature, weight in zip(phi, weights, strict=True)], dim=-2
    )


def test_covariances_of_the_scores_do_not_depend_on_the_basis_of_the_start():
    phi, start = features_of(), randn(32, 4, seed=3)
    gram = subspace.grams(phi)
    one, other = (
        scores(phi, subspace.iterate(gram, w, 2)) for w in (start, start @ randn(4, 4, seed=5))
    )
    assert_close(one @ one.mT, other @ other.mT, rtol=1e-5, atol=1e-5)


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
    whole = scores(phi, subspace.iterate(subspace.grams(phi), randn(6, 4, seed=3).to(dtype), 2))
    (whole.square().sum() + whole.sum()).backward()
    assert whole.isfinite().all()
    assert phi.grad.isfinite().all()
    kernel, e = phi[0] @ phi[1].mT, whole[..., :6, :]
    tolerance = {torch.float32: 5e-3, torch.float64: 1e-6}[dtype]
    values = torch.linalg.eigvalsh((kernel @ kernel.mT - e @ e.mT).detach().double())
    assert (values[:, 0] > -tolerance * kernel.square().sum((-2, -1)) - 1e-9).all()
