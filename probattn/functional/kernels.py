"""Covariance functions without parameters (CGP paper, sections 2.1 and 5.1), each one matrix
product.

Shapes: ``...`` are leading dimensions that broadcast, ``N`` and ``M`` points, ``d`` their width.
"""

import torch
from torch import Tensor


def rbf(a: Tensor, b: Tensor, log_factor: Tensor | None = None) -> Tensor:
    """Return c exp(−½ ‖a − b‖²), from ‖a‖² + ‖b‖² − 2 a·b about the mean of b, so that a common
    offset cancels first.

    The rounding error of ‖a − b‖² is a few eps ‖a‖² of the centred points: in float32 an entry near
    1 is accurate to about 1e-6 for norms of 1, 1e-5 for 6 and 0.1 for 600. If ``b is a``, the norms
    are the diagonal of the product itself: the diagonal is then exactly 1 at any scale, and equal
    points have equal rounding errors.

    Args:
        a: points ``(..., N, d)``.
        b: points ``(..., M, d)``; pass the same tensor for the kernel of one set of points.
        log_factor: log c ``(...)``, None for 0.

    Returns:
        ``(..., N, M)``, in (0, c].
    """
    is_same = b is a
    centre = b.detach().mean(-2, keepdim=True)
    a = a - centre
    b = a if is_same else b - centre
    # a·b, then −½ ‖a‖² and −½ ‖b‖²
    log = a @ b.mT
    rows = (log.diagonal(dim1=-2, dim2=-1) if is_same else a.square().sum(-1)) / -2
    columns = rows if is_same else b.square().sum(-1) / -2
    log = log.add_(rows.unsqueeze(-1)).add_(columns.unsqueeze(-2)).clamp(max=0)
    if log_factor is not None:
        log = log.add_(log_factor[..., None, None])
    return log.exp_()


def exponential(a: Tensor, b: Tensor) -> Tensor:
    """Return exp(a · b) (CGP paper, section 5.1): positive definite, unbounded, Inf beyond a · b ≈
    88 in float32.

    Args:
        a: points ``(..., N, d)``.
        b: points ``(..., M, d)``.

    Returns:
        ``(..., N, M)``.
    """
    return torch.exp(a @ b.mT)
