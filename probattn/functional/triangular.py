"""Cholesky factors, triangular solves and products with draws as columns."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor L of M = L Lᵀ ``(..., n, n)``, and an integer for each matrix, not 0 where
    there is no factor."""
    return _Cholesky.apply(matrix)


def inverse_factor(matrix: Tensor, tril: Tensor) -> Tensor:
    """Return L⁻¹ ``(..., n, n)`` of M = L Lᵀ, whose gradient goes to M, and not through L: as many
    products as for L itself, without another factorisation."""
    return _InverseFactor.apply(matrix, tril.detach())


def less_gram(matrix: Tensor, root: Tensor) -> Tensor:
    """Return M − BᵀB for M ``(..., n, n)`` and B ``(..., k, n)``; the gradient of B is one product,
    where PyTorch's is two."""
    return _LessGram.apply(matrix, root)


def solve_lower(tril: Tensor, b: Tensor) -> Tensor:
    """Return L⁻¹ B for lower-triangular L ``(..., n, n)`` and B ``(..., n, k)``.

    Leading dimensions of B that L lacks become columns: one solve with many columns is several
    times faster than many small ones.
    """
    return _on_columns(_solve, tril, b)


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
    return _solve(triangle, identity.expand_as(triangle), upper=upper)


def _solve(triangle: Tensor, b: Tensor, *, upper: bool = False) -> Tensor:
    # Xᵀ Lᵀ = Bᵀ: on a CPU two to three times as fast as L X = B
    return torch.linalg.solve_triangular(triangle.mT, b.mT, upper=not upper, left=False).mT


class _Cholesky(Function):
    """L of M = L Lᵀ, with derivatives for symmetric changes of M, by products with L⁻¹."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> tuple[Tensor, Tensor]:
        factor, info = torch.linalg.cholesky_ex(matrix)
        return factor, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        factor, info = output
        ctx.mark_non_differentiable(info)
        ctx.save_for_backward(factor)
        ctx.save_for_forward(factor)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        """Use dL = L Φ(L⁻¹ dM L⁻ᵀ)."""
        (factor,) = ctx.saved_tensors
        root = inverse(factor, upper=False)
        return factor @ _half(root @ tangent @ root.mT), None

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> Tensor:
        """Use L⁻ᵀ Φ(Lᵀ grad) L⁻¹."""
        (factor,) = ctx.saved_tensors
        root = inverse(factor, upper=False)
        return root.mT @ _half(factor.mT @ grad) @ root


class _InverseFactor(Function):
    """X = L⁻¹ of M = L Lᵀ, with derivatives for symmetric changes of M, by products with X."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, tril: Tensor) -> Tensor:
        return inverse(tril, upper=False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Tensor | None) -> Tensor:
        """Use dX = −Φ(X dM Xᵀ) X."""
        (root,) = ctx.saved_tensors
        return -_half(root @ tangent @ root.mT) @ root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Use −Xᵀ Φ(grad Xᵀ) X."""
        (root,) = ctx.saved_tensors
        return root.mT @ -_half(grad @ root.mT) @ root, None


class _LessGram(Function):
    """M − BᵀB of M and B of the same leading dimensions."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, root: Tensor) -> Tensor:
        return matrix - root.mT @ root

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def jvp(ctx: Any, of_matrix: Tensor, of_root: Tensor) -> Tensor:
        """Use dM − dBᵀB − BᵀdB."""
        (root,) = ctx.saved_tensors
        change = of_root.mT @ root
        return of_matrix - change - change.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Use −B (grad + gradᵀ)."""
        (root,) = ctx.saved_tensors
        return grad, root @ -(grad + grad.mT)


def _half(matrix: Tensor) -> Tensor:
    """Return Φ(M), the lower triangle with half the diagonal, in place of M."""
    halves = matrix.new_full(matrix.shape[-2:], 0.5)
    return matrix.mul_(halves.tril() + halves.tril(-1))


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
