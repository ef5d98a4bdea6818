"""Natural-gradient steps against GPyTorch, closed forms, and gradients too noisy for the exact
step."""

import gpytorch
import pytest
import torch
from float64 import F64, eye64, ones64, tensor64
from gpytorch.variational import NaturalVariationalDistribution
from torch.testing import assert_close

from probattn.functional.natural_gradient import natural_step


def gaussian(*shape, seed, spread=0.5):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(*shape, generator=generator, dtype=F64)
    tril = 0.6 * torch.randn(*shape, shape[-1], generator=generator, dtype=F64)
    return loc, spread * (tril.tril(-1) + eye64(shape[-1]))


def gradients(loss, loc, tril):
    loc, tril = loc.clone().requires_grad_(), tril.clone().requires_grad_()
    return torch.autograd.grad(loss(loc, tril).sum(), (loc, tril))


def step(loc, tril, gradients, length):
    direction, tril = natural_step(tril, *gradients, length)
    return loc - length * direction, tril


@pytest.mark.parametrize("length", [0.05, 0.7])
def test_the_step_is_gpytorchs_in_natural_parameters(length):
    loc, tril = gaussian(2, 3, seed=1)
    weights = tensor64([0.5, -1.0, 2.0])

    def loss(loc, tril):
        """A loss of both moments that is no quadratic."""
        spread = (tril @ tril.mT @ weights * weights).sum(-1)
        return (
            (loc @ weights).tanh()
            + 0.4 * spread.sqrt()
            - tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        )

    ours = step(loc, tril, gradients(loss, loc, tril), length)
    theirs = NaturalVariationalDistribution(3, torch.Size([2])).double()
    precision = (tril @ tril.mT).inverse()
    theirs.natural_vec.data.copy_((precision @ loc.unsqueeze(-1)).squeeze(-1))
    theirs.natural_mat.data.copy_(-0.5 * precision)
    optimizer = gpytorch.optim.NGD(theirs.parameters(), num_data=1, lr=length)
    q = theirs()
    loss(q.mean, torch.linalg.cholesky(q.covariance_matrix)).sum().backward()
    optimizer.step()
    assert_close(ours[0], theirs().mean.detach())
    assert_close(ours[1] @ ours[1].mT, theirs().covariance_matrix.detach())
    assert (ours[1] == ours[1].tril()).all()
    assert (ours[1].diagonal(dim1=-2, dim2=-1) > 0).all()


@pytest.mark.parametrize("length", [0.1, 1.0])
@pytest.mark.parametrize("noise", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_too_long_step_along_a_noisy_gradient_stays_a_gaussian(length, noise, dtype):
    loc, tril = (value.to(dtype) for value in gaussian(50, 3, seed=3))
    grad_loc, grad_tril = (noise * value.to(dtype) for value in gaussian(50, 3, seed=4))
    new_loc, new_tril = step(loc, tril, (grad_loc, -grad_tril), length)
    assert new_loc.isfinite().all()
    assert (new_tril.diagonal(dim1=-2, dim2=-1) > 0).all()
    if length < 1:
        growth = torch.linalg.solve_triangular(tril, new_tril, upper=False)
        assert (torch.linalg.matrix_norm(growth, 2).square() <= 2 / (1 - length) + 1e-3).all()


def test_a_step_that_leaves_no_covariance_is_that_of_second_order():
    """M = 1 + X + X²/2 at X = −3, of variance 1."""
    one = ones64(1, 1)
    direction, tril = natural_step(one, 2 * one[0], -3 * one, 1.0)
    assert_close(tril.square(), one / 2.5)
    assert_close(direction, 2 * one[0] / 2.5)
