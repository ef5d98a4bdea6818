"""Padding: zeros in inputs; in matrices between tokens no correlation with real ones, and ones on
the diagonal."""

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
    if mask.dim() > x.dim() or mask.shape != x.shape[: mask.dim()]:
        return x
    return x.where(mask.bool()[(..., *(None,) * (x.dim() - mask.dim()))], 0.0)


def on_pairs(matrix: Tensor, real: Tensor | None) -> Tensor:
    """Return the matrix ``(..., N, N)`` with 0 where either token is padding.

    Args:
        matrix: the matrix.
        real: ``(..., 1, N)``, True where there is a token, or None.
    """
    return matrix if real is None else matrix.where(real.unsqueeze(-1) & real.unsqueeze(-2), 0.0)


def plus_diagonal(matrix: Tensor, value: Tensor | float, real: Tensor | None) -> Tensor:
    """Return the matrix with a value added to its diagonal at real tokens, and ones on the diagonal
    at padding.

    Args:
        matrix: ``(..., H, N, N)``, 0 at padding.
        value: a number, or one for each head ``(H,)``.
        real: ``(..., 1, N)``, True where there is a token, or None.
    """
    value = value.to(matrix) if isinstance(value, Tensor) else matrix.new_full((), value)
    value = value.unsqueeze(-1)
    added = (
        value if real is None else value.where(real, 1.0)
    )  # not expanded: examples share one diagonal
    return matrix + torch.diag_embed(added.expand(*added.shape[:-1], matrix.shape[-1]))
