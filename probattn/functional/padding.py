"""Matrices between the tokens of an example at padding: no correlation with real tokens, and a diagonal of ones."""

import torch
from torch import Tensor


def on_pairs(matrix: Tensor, real: Tensor | None) -> Tensor:
    """The matrix ``(..., N, N)`` with 0 wherever one of the two tokens is padding.

    Args:
        matrix: the matrix.
        real: ``(..., 1, N)``, True where there is a token, or None.
    """
    return matrix if real is None else matrix.where(real.unsqueeze(-1) & real.unsqueeze(-2), 0.0)


def plus_diagonal(matrix: Tensor, value: Tensor | float, real: Tensor | None) -> Tensor:
    """The matrix with a value added to its diagonal at real tokens, and ones on it at padding, which was 0.

    Args:
        matrix: ``(..., H, N, N)``, not changed.
        value: a number, or one for each head ``(H,)``.
        real: ``(..., 1, N)``, True where there is a token, or None.
    """
    value = torch.as_tensor(value, dtype=matrix.dtype, device=matrix.device).unsqueeze(-1)
    added = value if real is None else value.where(real, 1.0)  # not expanded: a diagonal that examples share is one
    return matrix + torch.diag_embed(added.expand(*added.shape[:-1], matrix.shape[-1]))
