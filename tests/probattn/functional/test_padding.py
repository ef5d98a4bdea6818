"""Matrices between tokens at padding, against loops."""

import pytest
import torch
from torch.testing import assert_close

from probattn.functional.padding import on_pairs, plus_diagonal

F64 = torch.float64


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("value", [0.0, 0.3, "heads"])
def test_plus_diagonal_in_loops(value, masked):
    matrix, original = randn(2, 3, 4, 4), randn(2, 3, 4, 4)
    mask = torch.tensor([[True, True, True, True], [True, False, True, False]])
    value = torch.tensor([0.1, 0.2, 0.7], dtype=F64) if value == "heads" else value
    expected = matrix.clone()
    for b in range(2):
        for h in range(3):
            for i in range(4):
                real = mask[b, i] or not masked
                expected[b, h, i, i] += (value[h] if isinstance(value, torch.Tensor) else value) if real else 1.0
    assert_close(plus_diagonal(matrix, value, mask.unsqueeze(-2) if masked else None), expected)
    assert torch.equal(matrix, original)


def test_plus_diagonal_carries_the_gradient_of_the_value():
    value = torch.tensor([0.1, 0.2], dtype=F64, requires_grad=True)
    real = torch.tensor([[[True, True, False]]])
    plus_diagonal(randn(1, 2, 3, 3), value, real).diagonal(dim1=-2, dim2=-1).sum().backward()
    assert_close(value.grad, torch.tensor([2.0, 2.0], dtype=F64))


def test_on_pairs_in_loops_whatever_stands_at_padding():
    matrix = randn(2, 3, 4, 4)
    mask = torch.tensor([[True, True, True, True], [True, False, True, False]])
    expected = torch.zeros_like(matrix)
    for b in range(2):
        for i in range(4):
            for j in range(4):
                if mask[b, i] and mask[b, j]:
                    expected[b, :, i, j] = matrix[b, :, i, j]
    matrix[1, :, 1] = torch.nan
    matrix[1, :, :, 3] = torch.inf
    assert torch.equal(on_pairs(matrix, mask.unsqueeze(-2)), expected)
    assert on_pairs(matrix, None) is matrix
