"""Triangular solves and products with draws as columns, and determinants by Cholesky factors."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def solve_lower(tril: Tensor, b: Tensor) -> Tensor:
    """Return L⁻¹ B for lower-triangular L ``(..., n, n)`` and B ``(..., n, k)``.

    Leading dimensions of B that L lacks become columns: one solve with many columns is several
    times faster than many small ones.
    """
    return _on_columns(
        lambda columns: torch.linalg.solve_triangular(tril, columns, upper=False), tril.dim(), b
    )


def product(matrix: Tensor, b: Tensor) -> Tensor:
    """Return M B for M ``(..., m, n)`` and B ``(..., n, k)``, whose additional leading dimensions
    become columns."""
    return _on_columns(lambda columns: matrix @ columns, matrix.dim(), b)


def log_det(tril: Tensor) -> Tensor:
    """Return log |L Lᵀ| for L ``(..., n, n)``."""
    return 2 * tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def inverse(triangle: Tensor, *, upper: bool) -> Tensor:
    """Return the inverse of small triangular matrices ``(..., n, n)``, whose products are faster
    than solves."""
    identity = torch.eye(triangle.shape[-1], dtype=triangle.dtype, device=triangle.device)
    return torch.linalg.solve_triangular(triangle, identity.expand_as(triangle), upper=upper)


def _on_columns(operation: Callable[[Tensor], Tensor], dim: int, b: Tensor) -> Tensor:
    """Apply a linear operation on columns ``(..., n, k)`` of ``dim`` dimensions to B with as many
    or more."""
    missing = b.dim() - dim
    if missing <= 0:
        return operation(b)
    lead = b.shape[:missing]
    columns = operation(b.flatten(0, missing - 1).movedim(0, -2).flatten(-2))
    return columns.unflatten(-1, (math.prod(lead), b.shape[-1])).movedim(-2, 0).unflatten(0, lead)
