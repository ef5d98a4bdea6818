"""Triangular solves, and determinants of what a triangular matrix is the Cholesky factor of."""

import math

import torch
from torch import Tensor


def solve_lower(tril: Tensor, b: Tensor) -> Tensor:
    """L⁻¹ B for lower-triangular L ``(..., n, n)`` and B ``(..., n, k)``.

    Where L lacks leading dimensions of B, these become columns: one solve with many columns is several times faster
    than many small ones.
    """
    missing = b.dim() - tril.dim()
    if missing <= 0:
        return torch.linalg.solve_triangular(tril, b, upper=False)
    lead = b.shape[:missing]
    columns = b.flatten(0, missing - 1).movedim(0, -2).flatten(-2)
    solved = torch.linalg.solve_triangular(tril, columns, upper=False)
    return solved.unflatten(-1, (math.prod(lead), b.shape[-1])).movedim(-2, 0).unflatten(0, lead)


def log_det(tril: Tensor) -> Tensor:
    """log |L Lᵀ| for L ``(..., n, n)``."""
    return 2 * tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
