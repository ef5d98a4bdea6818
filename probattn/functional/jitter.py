"""Cholesky factors with bounded, relative, reported jitter.

Nothing is ever inverted. What cannot be factorised is an error that names the layer and the matrix.
"""

import warnings

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


def mean_diagonal(matrix: Tensor) -> Tensor:
    """tr(M) / n of M ``(..., n, n)``: ``(...)``."""
    return matrix.diagonal(dim1=-2, dim2=-1).mean(-1)


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
