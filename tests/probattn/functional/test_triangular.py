"""Triangular solves and log determinants against torch's general ones, with gradients."""

import pytest
import torch
from torch.testing import assert_close

from probattn.functional.triangular import log_det, product, solve_lower

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("tril", "b"),
    [
        ((3, 3), (3, 2)),
        ((3, 3), (4, 3, 2)),
        ((3, 3), (5, 4, 3, 2)),
        ((2, 3, 3), (4, 2, 3, 5)),
        ((2, 3, 3), (6, 4, 2, 3, 5)),
        ((4, 2, 3, 3), (4, 2, 3, 5)),
        ((2, 4, 2, 3, 3), (4, 2, 3, 5)),
        ((4, 1, 3, 3), (4, 2, 3, 5)),
        ((2, 3, 3), (1, 2, 3, 1)),
        ((1, 3, 3), (4, 2, 3, 5)),
    ],
)
def test_solve_lower_is_the_plain_solve_with_its_gradients(tril, b):
    tril = (randn(*tril).tril() + 3 * torch.eye(3, dtype=F64)).requires_grad_()
    b = randn(*b, seed=1).requires_grad_()
    solved = solve_lower(tril, b)
    expected = torch.linalg.solve(tril, b)
    assert_close(solved, expected)
    weight = randn(*expected.shape, seed=2)
    actual_grads = torch.autograd.grad((solved * weight).sum(), (tril, b))
    expected_grads = torch.autograd.grad((expected * weight).sum(), (tril, b))
    assert_close(actual_grads[0], expected_grads[0].tril())
    assert_close(actual_grads[1], expected_grads[1])


def test_solve_lower_reads_the_lower_triangle_only():
    full, b = randn(3, 3) + 3 * torch.eye(3, dtype=F64), randn(4, 3, 2, seed=1)
    assert_close(solve_lower(full, b), torch.linalg.solve(full.tril(), b))


def test_log_det_is_torchs():
    root = randn(2, 3, 4, 4)
    matrix = root @ root.mT + 0.5 * torch.eye(4, dtype=F64)
    assert_close(log_det(torch.linalg.cholesky(matrix)), torch.linalg.slogdet(matrix).logabsdet)


@pytest.mark.parametrize(
    ("matrix", "b"),
    [
        ((3, 4), (4, 2)),
        ((3, 4), (5, 4, 2)),
        ((2, 3, 4), (6, 5, 2, 4, 1)),
        ((5, 2, 3, 4), (2, 4, 7)),
        ((2, 3, 4), (6, 1, 4, 2)),
    ],
)
def test_product_is_the_plain_product_with_its_gradients(matrix, b):
    matrix, b = randn(*matrix).requires_grad_(), randn(*b, seed=1).requires_grad_()
    found, expected = product(matrix, b), matrix @ b
    assert_close(found, expected)
    weight = randn(*expected.shape, seed=2)
    grads = [torch.autograd.grad((each * weight).sum(), (matrix, b)) for each in (found, expected)]
    assert_close(*grads)
