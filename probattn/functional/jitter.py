"""Cholesky factors with bounded, relative, reported jitter.

A matrix that cannot be factorised is an error that names the layer and the matrix.
"""

import warnings

import torch
from torch import Tensor

from probattn.functional import errors, triangular

# Not linear_operator's psd_safe_cholesky, whose jitter is absolute: these are relative to the scale
# of the matrix.
JITTERS = {
    torch.float32: (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    torch.float64: (1e-8, 1e-7, 1e-6, 1e-5, 1e-4),
}
"""Jitters that are tried in turn, relative to the scale of the matrix."""


class JitterWarning(UserWarning):
    """A matrix was factorised with jitter on its diagonal; the message names the layer, the matrix
    and the jitter."""


def cholesky(
    matrix: Tensor,
    name: str,
    scale: Tensor | None = None,
) -> Tensor:
    """Return L with L Lᵀ = matrix; only the matrices of the batch for which that fails get an
    increasing jitter.

    Args:
        matrix: ``(..., n, n)``, symmetric.
        name: of the matrix, for errors and warnings.
        scale: what the jitter is relative to, ``(...)``: the mean diagonal by default, or that of
            the larger matrices whose difference this is, since their rounding errors remain where
            they cancel.

    Returns:
        ``(..., n, n)``, lower-triangular.

    Raises:
        NumericalError: NaN or Inf, or not positive definite with the largest jitter. Where no value
            may be looked at (see :func:`~probattn.functional.errors.is_any`), a failing matrix gets
            the middle jitter, or else NaN.
    """
    factor, failed = try_cholesky(matrix)
    has_failed = errors.has_failed(failed)
    if has_failed is None:
        shares = JITTERS[matrix.dtype]
        middle = shares[len(shares) // 2] * positive_scale(matrix, scale) * failed
        factor, failed = try_cholesky(with_jitter(matrix, middle))
        return factor.masked_fill(failed[..., None, None], torch.nan)
    if not has_failed:
        return factor
    errors.check_finite(matrix, name)
    scale = positive_scale(matrix, scale)
    jitter = torch.zeros_like(failed, dtype=matrix.dtype)
    for share in JITTERS[matrix.dtype]:
        jitter = jitter.masked_fill(failed, share)
        factor, failed = try_cholesky(with_jitter(matrix, jitter * scale))
        if not failed.any():
            message = (
                f"{errors.subject(name)}: some matrices needed a jitter of up to {share:.0e} of "
                "their scale"
            )
            warnings.warn(message, JitterWarning, stacklevel=2)
            return factor
    raise errors.NumericalError(
        f"{errors.subject(name)} is not positive definite, even with a jitter of {share:.0e} of "
        "its scale. Lower the "
        "learning rate, or raise the layer's noise"
    )


def mean_diagonal(matrix: Tensor) -> Tensor:
    """Return tr(M) / n of M ``(..., n, n)``: ``(...)``."""
    return matrix.diagonal(dim1=-2, dim2=-1).mean(-1)


def try_cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a factor, and a flag for each matrix of the batch that has none."""
    factor, info = triangular.cholesky(matrix)
    # LAPACK does not report an Inf on the diagonal, which would remove its row from every solve;
    # CUDA reports no NaN.
    return factor, (info != 0) | ~factor.diagonal(dim1=-2, dim2=-1).isfinite().all(-1)


def with_jitter(matrix: Tensor, jitter: Tensor) -> Tensor:
    """Return the matrix with a jitter ``(...)`` on its diagonal."""
    return matrix + torch.diag_embed(jitter.unsqueeze(-1).expand(matrix.shape[:-1]))


def positive_scale(matrix: Tensor, scale: Tensor | None) -> Tensor:
    """Return the scale that jitter is relative to, positive and without gradient."""
    scale = mean_diagonal(matrix) if scale is None else scale
    return scale.detach().clamp(min=torch.finfo(matrix.dtype).tiny)
