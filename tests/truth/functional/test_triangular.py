"""Triangular solves and products with draws as columns against torch's general ones, with
gradients."""

import pytest
import torch
from sampling import randn
from torch.testing import assert_close

from probattn.functional.triangular import product, solve_lower

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
