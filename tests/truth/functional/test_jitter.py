"""Factorisation with bounded, relative, reported jitter, against torch."""

import math

import pytest
import torch
from float64 import eye64, tensor64
from sampling import randn
from torch.testing import assert_close

from probattn.functional.errors import NumericalError, located
from probattn.functional.jitter import JitterWarning, cholesky, mean_diagonal

F32, F64 = torch.float32, torch.float64


def positive(*shape, seed=0, dtype=F64):
    """Positive definite with every eigenvalue above 1/2."""
    root = randn(*shape, shape[-1], seed=seed, dtype=dtype)
    return root @ root.mT + 0.5 * torch.eye(shape[-1], dtype=dtype)


def singular(seed=0):
    """Rank 2, moved down by 1e-9 of its size, so that no Cholesky factor exists in float64."""
    root = randn(5, 2, seed=seed)
    return root @ root.T - 1e-9 * root.square().sum() / 5 * eye64(5)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("shape", [(1,), (2, 3, 5), (0, 4)])
def test_a_positive_definite_matrix_gives_torchs_factor_to_the_bit_without_a_warning(shape, dtype):
    matrix = positive(*shape, dtype=dtype)
    assert torch.equal(cholesky(matrix, "K"), torch.linalg.cholesky(matrix))


def test_only_the_failing_matrices_of_a_batch_are_moved_each_by_its_own_mean_diagonal():
    good = positive(2, 5, seed=1)
    batch = torch.stack([good[0], singular(), good[1], 1e6 * singular(3)]).unflatten(0, (2, 2))
    with pytest.warns(JitterWarning, match="K: some matrices needed a jitter"):
        factor = cholesky(batch, "K").flatten(0, 1)
    assert_close(factor[[0, 2]], torch.linalg.cholesky(good), rtol=1e-13, atol=1e-13)
    for matrix, tril in zip(batch.flatten(0, 1)[[1, 3]], factor[[1, 3]], strict=True):
        added, scale = tril @ tril.T - matrix, matrix.diagonal().mean()
        assert_close(added.diagonal().mean() / scale, tensor64(1e-8), rtol=1e-4, atol=0)
        expected = added.diagonal().mean() * eye64(5)
        assert_close(added, expected, rtol=0, atol=1e-13 * matrix.abs().max().item())


@pytest.mark.parametrize(
    ("dtype", "eigenvalue", "jitter"),
    [
        (F64, -5e-9, "1e-08"),
        (F64, -5e-8, "1e-07"),
        (F64, -5e-5, "1e-04"),
        (F32, -5e-4, "1e-03"),
        (F32, -5e-3, "1e-02"),
    ],
)
def test_the_jitter_that_was_needed_is_reported_and_is_what_was_added(dtype, eigenvalue, jitter):
    """Eigenvalues 1, 1 and a little below 0: the smallest power of ten that lifts it, as a share of
    the mean."""
    basis = torch.linalg.qr(randn(3, 3)).Q
    share = eigenvalue * 2 / (3 - eigenvalue)
    matrix = (basis * tensor64([1.0, 1.0, share])) @ basis.T
    with located("SGPAttention 'blocks.3.attention'"), pytest.warns(JitterWarning) as caught:
        factor = cholesky(matrix.to(dtype), "K_ββ").to(F64)
    (warning,) = caught
    assert all(
        word in str(warning.message)
        for word in ("SGPAttention 'blocks.3.attention'", "K_ββ", jitter)
    )
    added = (factor @ factor.T - matrix).diagonal().mean() / matrix.diagonal().mean()
    assert_close(added.item(), float(jitter), rtol=5e-2, atol=0)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_difference_of_large_matrices_is_moved_by_a_share_of_those(dtype):
    """The given scale is the measure where all but rounding cancels in the mean diagonal, for each
    of a batch."""
    scale = torch.tensor([4.0, 1.0], dtype=dtype)
    epsilon = torch.finfo(dtype).eps
    matrix = scale[:, None, None] * epsilon * torch.tensor([[1.0, 3.0], [3.0, 1.0]], dtype=dtype)
    with pytest.raises(NumericalError, match="C is not positive"):
        cholesky(matrix, "C")
    with pytest.warns(JitterWarning, match="C: some"):
        factor = cholesky(matrix, "C", scale)
    share = 1e-6 if dtype == F32 else 1e-8
    added = (factor @ factor.mT - matrix).diagonal(dim1=-2, dim2=-1)
    assert_close(added, (share * scale).unsqueeze(-1).expand(2, 2), rtol=1e-4, atol=0)
    assert torch.equal(mean_diagonal(matrix), matrix[:, 0, 0])


@pytest.mark.parametrize(("dtype", "largest"), [(F64, 1e-4), (F32, 1e-2)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_clearly_negative_eigenvalue_is_an_error_that_names_layer_and_matrix(
    dtype, largest, scale
):
    basis = torch.linalg.qr(randn(4, 4)).Q
    matrix = scale * (basis * tensor64([1.0, 1.0, 1.0, -4 * largest])) @ basis.T
    batch = torch.stack([positive(4), matrix]).to(dtype)
    with (
        located("the layer"),
        pytest.raises(NumericalError, match=rf"the layer: C is not positive.*{largest:.0e}"),
    ):
        cholesky(batch, "C")


@pytest.mark.parametrize("place", [(0, 0), (2, 2), (2, 1)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_nan_and_inf_are_named_errors_wherever_they_stand(place, value, dtype):
    """Inf on the diagonal is no failure to LAPACK: it would silently cut that row out of every
    solve."""
    batch = positive(2, 3, dtype=dtype)
    batch[1][place] = batch[1][place[::-1]] = value
    with (
        located("CGPAttention 'a.b'"),
        pytest.raises(NumericalError, match=r"CGPAttention 'a\.b': K_oo.*NaN or Inf"),
    ):
        cholesky(batch, "K_oo")
