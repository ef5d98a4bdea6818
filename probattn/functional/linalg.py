"""Cholesky factors with bounded, relative, reported jitter, and triangular solves.

Nothing is ever inverted. What cannot be factorised is an error that names the layer and the matrix.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from probattn.functional import errors

JITTERS = {
    torch.float32: (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    torch.float64: (1e-8, 1e-7, 1e-6, 1e-5, 1e-4),
}
"""The shares of a matrix's scale that are tried on its diagonal, one after the other."""


class JitterWarning(UserWarning):
    """A matrix had to be moved to be factorised; the message names the layer, the matrix and the jitter."""


def cholesky(matrix: Tensor, name: str, scale: Tensor | None = None) -> Tensor:
    """L with L Lᵀ = matrix; where that fails, those matrices of the batch alone get a growing share of their diagonal.

    Args:
        matrix: ``(..., n, n)``, symmetric.
        name: of the matrix, for errors and warnings.
        scale: what the share is of, ``(...)``: the mean diagonal by default, or that of the larger matrices whose
            difference this is, since their rounding is what remains where they cancel.

    Returns:
        ``(..., n, n)``, lower-triangular.

    Raises:
        NumericalError: NaN or Inf, or not positive definite with the largest jitter.
    """
    failures = errors.gathered()
    if torch.compiler.is_exporting():
        return _exportable_cholesky(matrix, _positive(matrix, scale))
    if failures is not None:
        factor, failed = _try_cholesky(_moved(matrix, JITTERS[matrix.dtype][0] * _positive(matrix, scale)))
        failures.append(failed.any())
        return factor
    factor, failed = _try_cholesky(matrix)
    if not failed.any():
        return factor
    return _jittered_cholesky(matrix, name, _positive(matrix, scale), failed)


@contextmanager
def without_autocast(device_type: str) -> Iterator[None]:
    """No autocast inside; where there is none anyway, nothing is done, which an exported program would repeat."""
    off = torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()
    with off:
        yield


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or float64 where it is that."""
    return x if x.dtype == torch.float64 else x.float()


def solve_lower(tril: Tensor, b: Tensor) -> Tensor:
    """L⁻¹ B for lower-triangular L ``(..., n, n)`` and B ``(..., n, k)``.

    Where L lacks leading dimensions of B, these become columns: one solve with many columns is several times faster
    than many small ones.
    """
    return _on_columns(lambda columns: torch.linalg.solve_triangular(tril, columns, upper=False), tril.dim(), b)


def product(matrix: Tensor, b: Tensor) -> Tensor:
    """M B for M ``(..., m, n)`` and B ``(..., n, k)``, whose additional leading dimensions become columns, too."""
    return _on_columns(lambda columns: matrix @ columns, matrix.dim(), b)


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


def mean_diagonal(matrix: Tensor) -> Tensor:
    """tr(M) / n of M ``(..., n, n)``: ``(...)``."""
    return matrix.diagonal(dim1=-2, dim2=-1).mean(-1)


def log_det(tril: Tensor) -> Tensor:
    """log |L Lᵀ| for L ``(..., n, n)``."""
    return 2 * tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _on_columns(operation: Callable[[Tensor], Tensor], dim: int, b: Tensor) -> Tensor:
    """A linear operation on columns ``(..., n, k)`` with ``dim`` dimensions, applied to B with as many or more."""
    missing = b.dim() - dim
    if missing <= 0:
        return operation(b)
    lead = b.shape[:missing]
    columns = operation(b.flatten(0, missing - 1).movedim(0, -2).flatten(-2))
    return columns.unflatten(-1, (math.prod(lead), b.shape[-1])).movedim(-2, 0).unflatten(0, lead)


def _jittered_cholesky(matrix: Tensor, name: str, scale: Tensor, failed: Tensor) -> Tensor:
    errors.check_finite(matrix, name)
    jitter = torch.zeros_like(failed, dtype=matrix.dtype)
    for share in JITTERS[matrix.dtype]:
        jitter = jitter.masked_fill(failed, share)
        factor, failed = _try_cholesky(_moved(matrix, jitter * scale))
        if not failed.any():
            message = f"{errors.subject(name)}: some matrices needed a jitter of up to {share:.0e} of their scale"
            warnings.warn(message, JitterWarning, stacklevel=3)
            return factor
    raise errors.NumericalError(
        f"{errors.subject(name)} is not positive definite, even with a jitter of {share:.0e} of its scale: lower the "
        "learning rate, or raise the layer's noise"
    )


def _exportable_cholesky(matrix: Tensor, scale: Tensor) -> Tensor:
    """The factor without a look at it: with the middle jitter where it fails, and NaN where that fails, too."""
    _, failed = _try_cholesky(matrix)
    shares = JITTERS[matrix.dtype]
    factor, failed = _try_cholesky(_moved(matrix, shares[len(shares) // 2] * scale * failed))
    return factor.masked_fill(failed[..., None, None], torch.nan)


def _try_cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A factor, and which matrices of the batch have none."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    # An Inf on the diagonal is no failure to LAPACK, and would cut its row out of every solve; nor is a NaN to CUDA's.
    return factor, (info != 0) | ~factor.diagonal(dim1=-2, dim2=-1).isfinite().all(-1)


def _moved(matrix: Tensor, jitter: Tensor) -> Tensor:
    """The matrix with a jitter ``(...)`` on its diagonal."""
    return matrix + torch.diag_embed(jitter.unsqueeze(-1).expand(matrix.shape[:-1]))


def _positive(matrix: Tensor, scale: Tensor | None) -> Tensor:
    """What a jitter is a share of, without gradient."""
    scale = mean_diagonal(matrix) if scale is None else scale
    return scale.detach().clamp(min=torch.finfo(matrix.dtype).tiny)
