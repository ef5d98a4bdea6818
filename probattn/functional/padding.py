"""Padding: zeros in inputs; in matrices between tokens no correlation with real ones, and ones on
the diagonal.

``real`` is ``(..., 1, N)``, True where there is a token, or None if all tokens are real.
"""

import torch
from torch import Tensor


def zeroed(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return inputs with 0 at padding, so that what stands there, NaN included, has no effect on
    values or gradients.

    Tensors that are not of the form ``(batch, tokens, ...)`` (images) are unchanged, and so are
    token ids, from whose value at padding some networks derive positions.

    Args:
        x: the inputs.
        mask: ``(batch, tokens)``, boolean, or integers 0 and 1; None if all tokens are real.
    """
    if mask is None or mask.is_floating_point() or not x.is_floating_point():
        return x
    if mask.shape != x.shape[: mask.dim()]:
        return x
    missing = x.dim() - mask.dim()
    return x.where(mask.bool().view(*mask.shape, *(1,) * missing), 0.0)


def real_and_count(mask: Tensor | None, x: Tensor) -> tuple[Tensor | None, int | Tensor]:
    """Return ``real``, and the number of real tokens: N, or ``(batch, 1)`` in the dtype of x.

    Args:
        mask: ``(batch, N)``, True where there is a token; None if all tokens are real.
        x: tokens ``(..., N, d)``.
    """
    if mask is None:
        return None, x.shape[-2]
    return mask.unsqueeze(-2), mask.sum(-1, keepdim=True, dtype=x.dtype)


def rows(x: Tensor, real: Tensor | None) -> Tensor:
    """Return x ``(..., N, d)`` with 0 in the rows of padding."""
    return x if real is None else x.where(real.unsqueeze(-1), 0.0)


def columns(matrix: Tensor, mask: Tensor | None) -> Tensor:
    """Return a matrix ``(..., batch, H, N, N)`` with 0 in the columns of padding; mask
    ``(batch, N)``."""
    return matrix if mask is None else matrix.where(mask[:, None, None, :], 0.0)


def on_pairs(matrix: Tensor, real: Tensor | None) -> Tensor:
    """Return the matrix ``(..., N, N)`` with 0 where either token is padding."""
    if real is None:
        return matrix
    return matrix.where(real.unsqueeze(-1) & real.unsqueeze(-2), 0.0)


def plus_diagonal(
    matrix: Tensor,
    value: Tensor | float,
    real: Tensor | None = None,
) -> Tensor:
    """Return the matrix with a value added to its diagonal at real tokens, and ones on the diagonal
    at padding.

    Args:
        matrix: ``(..., H, N, N)``, 0 at padding.
        value: a number, or one for each head ``(H,)``.
        real: as above.
    """
    value = torch.as_tensor(value, dtype=matrix.dtype, device=matrix.device).unsqueeze(-1)
    # Not expanded before the addition: examples share one diagonal.
    added = value if real is None else value.where(real, 1.0)
    return matrix + torch.diag_embed(added.expand(*added.shape[:-1], matrix.shape[-1]))
