"""Triangular solves and products with draws as columns, and determinants by Cholesky factors."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor


def solve_lower(tril: Tensor, b: Tensor) -> Tensor:
    """Return L⁻¹ B for lower-triangular L ``(..., n, n)`` and B ``(..., n, k)``.

    Leading dimensions of B that L lacks become columns: one solve with many columns is several
    times faster than many small ones.
    """
    return _on_columns(partial(torch.linalg.solve_triangular, upper=False), tril, b)


def product(matrix: Tensor, b: Tensor) -> Tensor:
    """Return M B for M ``(..., m, n)`` and B ``(..., n, k)``, whose additional leading dimensions
    become columns."""
    return _on_columns(torch.matmul, matrix, b)


def log_det(tril: Tensor) -> Tensor:
    """Return log |L Lᵀ| for L ``(..., n, n)``."""
    return 2 * tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def inverse(triangle: Tensor, *, upper: bool) -> Tensor:
    """Return the inverse of small triangular matrices ``(..., n, n)``, whose products are faster
    than solves."""
    identity = torch.eye(triangle.shape[-1], dtype=triangle.dtype, device=triangle.device)
    return torch.linalg.solve_triangular(triangle, identity.expand_as(triangle), upper=upper)


def _on_columns(
    operation: Callable[..., Tensor],
    matrix: Tensor,
    b: Tensor,
) -> Tensor:
    """Apply an operation of a matrix on the columns of B, which may have more dimensions."""
    missing = b.dim() - matrix.dim()
    if missing <= 0:
        return operation(matrix, b)
    # (draws, ..., n, k) → (..., n, draws · k), and back
    lead = b.shape[:missing]
    columns = b.flatten(0, missing - 1).movedim(0, -2).flatten(-2)
    # math.prod: numel() would fix a symbolic batch size in an exported program.
    result = operation(matrix, columns).unflatten(-1, (math.prod(lead), b.shape[-1]))
    return result.movedim(-2, 0).unflatten(0, lead)
