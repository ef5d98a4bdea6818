"""Covariance functions without parameters (CGP paper, sections 2.1 and 5.1), each one matrix
product.

Shapes: ``...`` are leading dimensions that broadcast, ``N`` and ``M`` points, ``d`` their width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


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
        log_factor: log c ``(...)``, of no more dimensions than the product; None for 0.

    Returns:
        ``(..., N, M)``, at most c.
    """
    centre = b.detach().mean(-2, keepdim=True)
    # contiguous, so that no product copies them again
    own = (a - centre).contiguous()
    other = None if b is a else (b - centre).contiguous()
    return _RBF.apply(own, other, log_factor)


class _RBF(Function):
    """c exp(−½ ‖a − b‖²), b = a for None; its derivatives are a few products with the kernel
    itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor | None, log_factor: Tensor | None) -> Tensor:
        # a·b, then −½ ‖a‖² and −½ ‖b‖²
        if b is None:
            log = a @ a.mT
            rows = columns = log.diagonal(dim1=-2, dim2=-1) / -2
        else:
            log = a @ b.mT
            rows = a.square().sum(-1) / -2
            columns = b.square().sum(-1) / -2
        log.add_(rows.unsqueeze(-1)).add_(columns.unsqueeze(-2)).clamp_max_(0)
        if log_factor is not None:
            log.add_(log_factor[..., None, None])
        return log.exp_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2], output)
        ctx.save_for_forward(*inputs[:2], output)

    @staticmethod
    def jvp(ctx: Any, da: Tensor, db: Tensor | None, dlog: Tensor | None) -> Tensor:
        """Use the change of −½ ‖a − b‖², (b − a)·da + (a − b)·db."""
        a, b, kernel = ctx.saved_tensors
        if b is None:
            b, db = a, da
        change = da @ b.mT - (a * da).sum(-1, keepdim=True)
        change = change + a @ db.mT - (b * db).sum(-1).unsqueeze(-2)
        if dlog is not None:
            change = change + dlog[..., None, None]
        return kernel * change

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Use ∂k_ij/∂a_i = k_ij (b_j − a_i); where b is a, pairs (i, j) and (j, i) share a
        product."""
        a, b, kernel = ctx.saved_tensors
        weights = grad * kernel
        of_factor = weights.sum((-2, -1)) if ctx.needs_input_grad[2] else None
        if b is None:
            return _pulled(weights + weights.mT, a, a), None, of_factor
        return _pulled(weights, a, b), _pulled(weights.mT, b, a), of_factor


def _pulled(weights: Tensor, points: Tensor, towards: Tensor) -> Tensor:
    """Return Σ_j w_ij (b_j − a_i) of weights ``(..., N, M)``, points a and b that they are pulled
    towards."""
    totals = weights.sum(-1, keepdim=True)
    # not in place, which has no batching rule
    return torch.addcmul(weights @ towards, totals, points, value=-1)


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
