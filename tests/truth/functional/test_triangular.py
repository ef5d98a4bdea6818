"""Cholesky factors, and triangular solves and products with draws as columns, against torch's
general ones, with gradients."""

import pytest
import torch
from sampling import randn
from torch.testing import assert_close

from probattn.functional.triangular import (
    cholesky,
    inverse_factor,
    less_gram,
    product,
    solve_lower,
)

SHAPES = [
    ((3, 3), (3, 2)),
    ((3, 3), (5, 4, 3, 2)),
    ((2, 3, 3), (6, 4, 2, 3, 5)),
    ((2, 4, 2, 3, 3), (4, 2, 3, 5)),
]
SHAPES += [((4, 1, 3, 3), (4, 2, 3, 5)), ((2, 3, 3), (1, 2, 3, 1)), ((1, 3, 3), (4, 2, 3, 5))]


@pytest.mark.parametrize(
    ("function", "plain"), [(solve_lower, torch.linalg.solve), (product, torch.matmul)]
)
@pytest.mark.parametrize(("tril", "b"), SHAPES)
def test_they_are_the_plain_ones_with_their_gradients(function, plain, tril, b):
    tril = (randn(*tril).tril() + 3 * torch.eye(3, dtype=torch.float64)).requires_grad_()
    b = randn(*b, seed=1).requires_grad_()
    expected = plain(tril, b)
    assert_close(function(tril, b), expected)
    weight = randn(*expected.shape, seed=2)
    ours, theirs = (
        torch.autograd.grad((of(tril, b) * weight).sum(), (tril, b)) for of in (function, plain)
    )
    assert_close(ours[0].tril(), theirs[0].tril())
    assert_close(ours[1], theirs[1])


def from_roots(root):
    """Return a factor of positive definite matrices, as a function of any."""
    matrix = root @ root.mT + torch.eye(3, dtype=torch.float64)
    return cholesky(matrix)[0]


def inverse_from_roots(root):
    """Return the inverse of that factor."""
    matrix = root @ root.mT + torch.eye(3, dtype=torch.float64)
    return inverse_factor(matrix, cholesky(matrix)[0])


def solved(tril, b):
    return solve_lower(tril.tril() + 3 * torch.eye(3, dtype=torch.float64), b)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (from_roots, SHAPES[0][:1]),
        (inverse_from_roots, SHAPES[0][:1]),
        (less_gram, ((3, 3), (2, 3))),
        (solved, SHAPES[0]),
    ],
)
def test_derivatives_forwards_twice_and_under_vmap(function, shapes):
    inputs = [randn(2, *shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs)
    assert_close(torch.vmap(function)(*inputs), function(*inputs))
    total = torch.func.grad(lambda *x: function(*x).square().sum())
    assert_close(torch.vmap(total)(*inputs), total(*inputs))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda matrix: cholesky(matrix)[0], torch.linalg.cholesky),
        (
            lambda matrix: inverse_factor(matrix, cholesky(matrix)[0]),
            lambda matrix: torch.linalg.cholesky(matrix).inverse(),
        ),
    ],
)
def test_factors_and_their_gradients_are_those_of_torch_for_symmetric_changes(ours, theirs):
    root, weight = randn(2, 4, 5, 5).requires_grad_(), randn(2, 4, 5, 5, seed=1)
    matrix = root @ root.mT
    assert_close(ours(matrix), theirs(matrix))
    of_ours, of_theirs = (
        torch.autograd.grad((factor(matrix) * weight).sum(), root, retain_graph=True)
        for factor in (ours, theirs)
    )
    assert_close(of_ours, of_theirs)


def test_a_matrix_less_a_gram_matrix_has_torchs_gradients():
    matrix, root = randn(2, 4, 5, 5).requires_grad_(), randn(2, 4, 3, 5, seed=1).requires_grad_()
    weight = randn(2, 4, 5, 5, seed=2)
    expected = matrix - root.mT @ root
    assert_close(less_gram(matrix, root), expected)
    ours, theirs = (
        torch.autograd.grad((of * weight).sum(), (matrix, root))
        for of in (less_gram(matrix, root), expected)
    )
    assert_close(ours, theirs)
