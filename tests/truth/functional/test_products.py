"""Products with gradients by hand against torch's own, in float64; what they keep, and under vmap
and autocast."""

import pytest
import torch
from sampling import randn
from torch.testing import assert_close

from probattn.functional.products import inverse_norm, of_unit_rows


def differentiable(*shape, **options):
    return randn(*shape, **options).requires_grad_()


def plain(x, weights):
    return (x * inverse_norm(x) @ weights).mT


SHAPES = [
    ((2, 3, 7, 5), (2, 3, 5, 4)),
    ((2, 3, 7, 5), (3, 5, 4)),
    ((3, 7, 5), (2, 3, 5, 4)),
    ((7, 5), (5, 4)),
]
SHAPES += [((2, 2, 1, 3, 7, 5), (2, 1, 4, 3, 5, 1))]


def gradients(function, *inputs, of=lambda value: value.sin().sum()):
    return torch.autograd.grad(of(function(*inputs)), inputs)


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_values_and_gradients_are_those_of_torch(first, second):
    inputs = differentiable(*first), differentiable(*second, seed=1)
    assert_close(of_unit_rows(*inputs), plain(*inputs))
    assert_close(gradients(of_unit_rows, *inputs), gradients(plain, *inputs))


@pytest.mark.parametrize(("first", "second"), SHAPES[:2])
def test_they_can_be_differentiated_forwards_and_twice(first, second):
    shapes = [tuple(min(size, 3) for size in shape) for shape in (first, second)]
    inputs = differentiable(*shapes[0]), differentiable(*shapes[1], seed=1)
    assert torch.autograd.gradcheck(of_unit_rows, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(of_unit_rows, inputs)


def test_a_zero_row_gives_zero_and_the_gradient_of_a_row_of_length_one():
    x, weights = randn(1, 3, 5), randn(1, 5, 2, seed=1)
    x[0, 1] = 0
    x.requires_grad_()
    value = of_unit_rows(x, weights)
    assert value[0, :, 1].eq(0).all()
    (grad,) = torch.autograd.grad(value.sum(), x)
    assert_close(grad[0, 1], weights[0].sum(-1))
    assert grad.isfinite().all()


@pytest.mark.parametrize("dims", [(0, 0), (2, None), (None, 1), (1, 2)])
@pytest.mark.parametrize(("first", "second"), [SHAPES[0], SHAPES[4]])
def test_under_vmap_values_and_gradients_are_those_of_a_loop(first, second, dims):
    shaped = zip((first, second), dims, strict=True)
    shapes = [shape if dim is None else (*shape[:dim], 6, *shape[dim:]) for shape, dim in shaped]
    inputs = differentiable(*shapes[0]), differentiable(*shapes[1], seed=1)

    def looped(*inputs):
        slices = [
            [t] * 6 if dim is None else t.unbind(dim) for t, dim in zip(inputs, dims, strict=True)
        ]
        return torch.stack([plain(*pair) for pair in zip(*slices, strict=True)])

    mapped = torch.vmap(of_unit_rows, in_dims=dims)
    assert_close(mapped(*inputs), looped(*inputs))
    assert_close(gradients(mapped, *inputs), gradients(looped, *inputs))


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_gradients_under_autocast_are_those_of_float32_to_its_precision(first, second):
    inputs = (
        differentiable(*first, dtype=torch.float32),
        differentiable(*second, seed=1, dtype=torch.float32),
    )
    half = (
        inputs[0].detach().bfloat16().requires_grad_(),
        inputs[1],
    )  # as a linear map before them gives it
    exact = gradients(plain, *inputs)
    for given in (inputs, half):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = of_unit_rows(*given)
        grads = torch.autograd.grad(value.float().sin().sum(), given)
        assert [grad.dtype for grad in grads] == [t.dtype for t in given]
        for grad, expected in zip(grads, exact, strict=True):
            assert (grad.float() - expected).norm() < 0.03 * expected.norm()


def test_norms_are_precise_where_rows_are_not():
    x = randn(50, 32).bfloat16()
    inverse = inverse_norm(x)
    assert inverse.dtype == torch.float32
    assert_close(inverse.double(), 1 / x.double().norm(dim=-1, keepdim=True), rtol=1e-6, atol=0)
    assert inverse_norm(x.double()).dtype == torch.float64
