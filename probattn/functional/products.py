"""Products of KSVD with custom gradients, which save and read fewer copies of their inputs than
PyTorch's.

They support double differentiation and :func:`torch.vmap`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def of_unit_rows(x: Tensor, weights: Tensor) -> Tensor:
    """Return (φ(X) W)ᵀ ``(..., s, N)``, φ(x) = x / ‖x‖, of x ``(..., N, d)``, W ``(..., d, s)``;
    zero rows stay 0."""
    lead = torch.broadcast_shapes(x.shape[:-2], weights.shape[:-2])
    x = x.expand(*lead, -1, -1).contiguous()
    weights = weights.to(x.dtype).expand(*lead, -1, -1)
    return _OfUnitRows.apply(x, weights)


def inverse_norm(x: Tensor) -> Tensor:
    """Return 1 / ‖x‖ of each row ``(..., 1)``, in float32 or better; 1 for a zero row, for a finite
    gradient."""
    precise = torch.promote_types(x.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=precise)
    return norm.where(norm > 0, 1.0).reciprocal()


class _OfUnitRows(Function):
    """Eᵀ = (φ(X) W)ᵀ of x ``(..., N, d)``; normalises the s columns of the product instead of the d
    of x."""

    @staticmethod
    def forward(x: Tensor, weights: Tensor) -> Tensor:
        return (weights.mT @ x.mT) * inverse_norm(x).mT

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Tensor, Tensor],
        output: Tensor,
    ) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def jvp(ctx: Any, x_tangent: Tensor, weights_tangent: Tensor) -> Tensor:
        """Use dE_ns = (w_s·dx_n + dw_s·x_n) / ‖x_n‖ − E_ns (x_n·dx_n) / ‖x_n‖²."""
        x, weights, scores = ctx.saved_tensors
        inverse = inverse_norm(x).mT
        change = weights.mT @ x_tangent.mT + weights_tangent.mT @ x.mT
        along = (x * x_tangent).sum(-1).unsqueeze(-2)
        return (change - scores * inverse * along) * inverse

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, int | None], *inputs: Tensor) -> tuple[Tensor, int]:
        """Let the mapped dimension lead, so that in-place operations need no batching rule."""
        mapped = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(inputs, dims, strict=True)
        ]
        return _OfUnitRows.apply(*mapped), 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Use ∂E_ns/∂x_n = (w_s − E_ns x_n / ‖x_n‖) / ‖x_n‖."""
        x, weights, scores = ctx.saved_tensors
        inverse = inverse_norm(x).mT
        grad = grad * inverse
        # −Σ_s grad_ns E_ns / ‖x_n‖, (..., 1, N)
        radial = (grad * scores).sum(-2, keepdim=True) * -inverse
        grad = grad.to(x.dtype)
        grad_x = (grad.mT @ weights.mT).addcmul_(x, radial.mT)
        return grad_x, (grad @ x).mT
