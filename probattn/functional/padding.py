"""Padding in matrices between tokens: no correlation with real tokens, and ones on the diagonal."""

import torch
from torch import Tensor


def on_pairs(matrix: Tensor, real: Tensor | None) -> Tensor:
    """Return the matrix ``(..., N, N)`` with 0 where either token is padding.

    Args:
        matrix: the matrix.
        real: ``(..., 1, N)``, True where there is a token, or None.
    """
    return matrix if real is None else matrix.where(real.unsqueeze(-1) & real.unsqueeze(-2), 0.0)


def plus_diagonal(matrix: Tensor, value: Tensor | float, real: Tensor | None) -> Tensor:
    """Return the matrix with a value added to its diagonal at real tokens, and ones on the diagonal at padding.

    Args:
        matrix: ``(..., H, N, N)``, 0 at padding.
        value: a number, or one for each head ``(H,)``.
        real: ``(..., 1, N)``, True where there is a token, or None.
    """
    value = torch.as_tensor(value, dtype=matrix.dtype, device=matrix.device).unsqueeze(-1)
    added = value if real is None else value.where(real, 1.0)  # not expanded: examples share one diagonal
    return matrix + torch.diag_embed(added.expand(*added.shape[:-1], matrix.shape[-1]))
