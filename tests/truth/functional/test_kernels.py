"""Kernels against loops in float64, their gradients, and what rounding does to them."""

import pytest
import torch
from sampling import randn
from torch.testing import assert_close

from probattn.functional.kernels import exponential, rbf

F64 = torch.float64


FORMULAE = {
    rbf: lambda a, b: (-0.5 * (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)).exp(),
    exponential: lambda a, b: (a.unsqueeze(-2) * b.unsqueeze(-3)).sum(-1).exp(),
}


@pytest.mark.parametrize(("kernel", "formula"), FORMULAE.items())
def test_values_are_the_formulas_and_leading_dimensions_broadcast_both_ways(kernel, formula):
    a, b = randn(4, 1, 5, 2), randn(3, 6, 2, seed=1)
    assert_close(kernel(a, b), formula(a, b))
    assert_close(kernel(b, a), formula(a, b).mT)


@pytest.mark.parametrize("kernel", FORMULAE)
def test_one_set_of_points_is_its_copy(kernel):
    """The shorter way for ``b is a`` must be the same function, in value and gradient."""
    a = randn(2, 5, 3).requires_grad_()
    weights = randn(2, 5, 5, seed=1)
    (short,) = torch.autograd.grad((weights * kernel(a, a)).sum(), a)
    (long,) = torch.autograd.grad((weights * kernel(a, a.clone())).sum(), a)
    assert_close(kernel(a, a), kernel(a, a.clone()))
    assert_close(short, long)


@pytest.mark.parametrize("kernel", FORMULAE)
def test_gradients(kernel):
    a, b = randn(2, 1, 3, 2).requires_grad_(), randn(2, 4, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(kernel, (a, b), check_forward_ad=True)
    assert torch.autograd.gradcheck(lambda a: kernel(a, a), (a,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(kernel, (a, b))
    assert torch.autograd.gradgradcheck(lambda a: kernel(a, a), (a,))


def test_gradients_with_a_factor_for_each_head():
    a, b = randn(2, 3, 3, 2).requires_grad_(), randn(2, 1, 4, 2, seed=1).requires_grad_()
    log_factor = randn(3, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(rbf, (a, b, log_factor), check_forward_ad=True)
    assert torch.autograd.gradcheck(
        lambda a, c: rbf(a, a, c), (a, log_factor), check_forward_ad=True
    )
    assert torch.autograd.gradgradcheck(rbf, (a, b, log_factor))


def test_gradients_under_vmap_are_those_of_a_loop():
    a, b, log_factor = randn(4, 3, 3, 2), randn(3, 5, 2, seed=1), randn(3, seed=2)
    gradients = torch.func.grad(lambda *x: rbf(*x).square().sum(), argnums=(0, 1, 2))
    mapped = torch.vmap(gradients, in_dims=(0, None, None))(a, b, log_factor)
    for number, points in enumerate(a):
        expected = gradients(points, b, log_factor)
        assert_close(tuple(gradient[number] for gradient in mapped), expected)
    of_one_set = torch.func.grad(lambda x: rbf(x, x, log_factor).square().sum())
    assert_close(torch.vmap(of_one_set)(a), torch.stack([of_one_set(points) for points in a]))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_gradient_at_equal_points_is_zero_and_finite(dtype):
    a = randn(4, 3, dtype=dtype)
    a[1], a[2] = a[0], 0
    for one, other in ((a, a), (a, a.clone())):
        one = one.requires_grad_()
        gradient = torch.autograd.grad(rbf(one, other)[0, 1], one)[0]
        assert_close(gradient, torch.zeros_like(a), atol=1e-6, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_float32_diagonal_is_one_whatever_the_scale(scale, offset):
    """‖a‖² + ‖a‖² − 2 a·a by separate sums is off by 0.1 at scale 100, and its exponential with
    it."""
    a = (scale * randn(8, 64, 32) + offset).float()
    a[:, 5] = a[:, 3]
    matrix = rbf(a, a)
    assert (matrix.diagonal(dim1=-2, dim2=-1) == 1).all()
    assert_close(matrix[:, 3, 5], torch.ones(8), atol=1e-6, rtol=0)
    assert (matrix <= 1).all()


@pytest.mark.parametrize("factor", [None, 0.5])
def test_float32_values_of_equal_points_are_not_above_the_factor(factor):
    """Rounding leaves about half of the ‖a − a‖² of two copies below 0."""
    a = (100 * randn(8, 64, 32)).float()
    log_factor = None if factor is None else torch.full((8,), factor).log()
    assert (rbf(a, a.clone(), log_factor) <= (factor or 1)).all()


def test_a_common_offset_cancels_before_the_square():
    a, b = randn(8, 64, 32) / 4, randn(8, 48, 32, seed=1) / 4
    moved_a, moved_b = (a + 100).float(), (b + 100).float()
    assert_close(
        rbf(moved_a, moved_b).double(), rbf(moved_a.double(), moved_b.double()), atol=2e-6, rtol=0
    )
