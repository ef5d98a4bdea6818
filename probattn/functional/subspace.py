"""Leading singular subspaces of the attention kernel K_att = φ_q φ_kᵀ by subspace iteration, and
what lies outside.

Everything is computed from the ``(d, d)`` Gram matrices of the features, linear in the number of
tokens. Bases are Y L⁻ᵀ with the Cholesky factor L Lᵀ = YᵀY, and polar factors Y (YᵀY)^(−1/2):
unlike singular vectors both are continuous in Y. In place of YᵀY stands YᵀY + ε tr(YᵀY) I, with a
small relative jitter ε, so that rank-deficient Y have finite values and gradients.

Shapes: ``...`` are leading dimensions (draws, batch), ``N`` tokens, ``H`` heads, ``d`` head width,
``s`` rank.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.functional import dtypes, jitter, ksvd, padding


class Grams(NamedTuple):
    """Gram matrices φ_qᵀ φ_q and φ_kᵀ φ_k, ``(..., H, d, d)``."""

    query: Tensor
    key: Tensor


def features(query_key: Tensor, mask: Tensor | None) -> Tensor:
    """Return φ_q and φ_k, zero at padding, in float32 or better, ``(2, ..., B, H, N, d)``.

    Args:
        query_key: queries and keys of that shape.
        mask: ``(B, N)``, True where there is a token.
    """
    phi = ksvd.cosine_features(dtypes.at_least_float32(query_key))
    return padding.rows(phi, None if mask is None else mask.unsqueeze(-2))


def grams(phi: Tensor) -> Grams:
    """Return the Gram matrices of features ``(2, ..., H, N, d)``, zero at padding."""
    return Grams(*(phi.mT @ phi))


def iterate(gram: Grams, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return the weights of scores E = φ_q W_e and R = φ_k W_r on the leading singular subspaces of
    K_att.

    A step is H_e = orth(φ_q W_e), H_r = orth(K_attᵀ H_e), W_e = φ_kᵀ H_r, so that E = K_att H_r; at
    the end W_r = φ_qᵀ polar(E), so that R = K_attᵀ polar(E). If H_r = V O spans the leading right
    singular vectors V, with any orthogonal O, then E = U Λ O and R = V Λ O: E Eᵀ, R Rᵀ and E Rᵀ are
    those of the exact decomposition (10).

    Args:
        gram: of the features.
        start: W_e at the start, ``(..., H, d, s)``.
        steps: number of steps, at least 1.

    Returns:
        W_e and W_r, ``(..., H, d, s)``.
    """
    w_e = start
    for _ in range(steps):
        w_r = gram.query @ orthonormal(gram.query, w_e)
        w_e = gram.key @ orthonormal(gram.key, w_r)
    return w_e, gram.query @ w_e @ inverse_sqrt(w_e.mT @ gram.query @ w_e)


def orthonormal(gram: Tensor, weights: Tensor) -> Tensor:
    """Return the weights of an orthonormal basis of Y = φ W, W L⁻ᵀ for L Lᵀ = YᵀY + ε tr(YᵀY) I.

    Args:
        gram: φᵀ φ ``(..., d, d)``.
        weights: W ``(..., d, s)``.
    """
    matrix = weights.mT @ gram @ weights
    share, trace, unit = _jitter_of(matrix)
    tril = jitter.cholesky(matrix / trace + share * unit, "EᵀE, the Gram matrix of scores")
    basis = torch.linalg.solve_triangular(tril, weights.mT, upper=False).mT
    return basis * trace.rsqrt()


def inverse_sqrt(matrix: Tensor) -> Tensor:
    """Return (M + ε tr(M) I)^(−1/2) of positive semi-definite M ``(..., s, s)``, of order 1/√ε
    where M = 0.

    By the coupled Newton-Schulz iteration (Higham, 2008, eq. 6.35) with the scaling of Chen & Chow
    (2014): products alone, so that gradients exist where eigenvalues coincide.
    """
    share, trace, unit = _jitter_of(matrix)
    trace = trace * (1 + share)
    # Roots of M / tr(M) and of its inverse
    root = matrix / trace + share / (1 + share) * unit
    inverse = unit
    for scaling in _scalings(share, torch.finfo(matrix.dtype).eps):
        factor = 0.5 * scaling * (3 * unit - scaling**2 * (inverse @ root))
        root = root @ factor
        inverse = factor @ inverse
    return inverse * trace.rsqrt()


def singular_values(gram: Grams, w_e: Tensor) -> Tensor:
    """Return the singular values of Hᵀ K_att, H an orthonormal basis of E = φ_q W_e: of K_att on
    E's columns.

    Those of K_att itself are at least as large; they are equal where E spans its leading left
    singular vectors.

    Args:
        gram: of the features.
        w_e: ``(..., H, d, s)``.

    Returns:
        ``(..., H, s)``, descending.
    """
    w_r = gram.query @ orthonormal(gram.query, w_e)
    energies = torch.linalg.eigvalsh(w_r.mT @ gram.key @ w_r)
    return energies.clamp(min=0).sqrt().flip(-1)


def residual_variances(
    phi: Tensor,
    gram: Grams,
    w_e: Tensor,
    w_r: Tensor,
    *,
    solved: bool,
) -> tuple[Tensor, Tensor]:
    """Return the variance of each branch that its scores E = φ_q W_e and R = φ_k W_r leave out.

    For E, with the projection P on its columns: diag((I − P) K_att K_attᵀ (I − P)). That is linear
    in the number of tokens: (I − P) φ_q = φ_q B, B = I − W Wᵀ φ_qᵀ φ_q for orthonormal φ_q W. With
    ``solved``, E = K_att H_r, and it is diag(K_att (I − H_r H_rᵀ) K_attᵀ) = diag(K_att K_attᵀ) −
    diag(E Eᵀ). For R it is the same of K_attᵀ.

    Args:
        phi: φ_q and φ_k, ``(2, ..., H, N, d)``.
        gram: their Gram matrices.
        w_e, w_r: ``(..., H, d, s)``.
        solved: the weights are those of :func:`iterate`.

    Returns:
        For E and for R, ``(..., H, N)``, not negative, zero at padding.
    """
    of_e = _outside(phi[0], w_e, gram.query, gram.key, solved=solved)
    of_r = _outside(phi[1], w_r, gram.key, gram.query, solved=solved)
    return of_e, of_r


def residual_scale(
    query_key: Tensor,
    mask: Tensor | None,
    w_e: Tensor,
    w_r: Tensor,
    pair: str,
    *,
    solved: bool,
) -> Tensor:
    """Return √(r₁ + r₂), r the residual variances of the two branches, ``(..., H, N)``, positive.

    A jitter, relative to the largest square of a cosine, bounds the gradient of the root where
    nothing is left out.

    Args:
        query_key: ``(2, ..., H, N, d)``.
        mask: ``(batch, N)``, True where there is a token.
        w_e, w_r: weights ``(..., H, d, s)``.
        pair: the two branches, of ``"e"`` and ``"r"``.
        solved: the weights are those of ``projection="svd"``
            (see :func:`residual_variances`).
    """
    phi = features(query_key, mask)
    w_e, w_r = map(dtypes.at_least_float32, (w_e, w_r))
    of_e, of_r = residual_variances(phi, grams(phi), w_e, w_r, solved=solved)
    total = pair.count("e") * of_e + pair.count("r") * of_r
    return (total + jitter.JITTERS[total.dtype][0]).sqrt()


def _outside(
    phi: Tensor,
    weights: Tensor,
    own: Tensor,
    other: Tensor,
    *,
    solved: bool,
) -> Tensor:
    """Return diag(φ M φᵀ), M = C − W Wᵀ or B C Bᵀ, for C the Gram matrix of the other features."""
    if solved:
        inner = other - weights @ weights.mT
    else:
        # B = I − W Wᵀ φᵀ φ
        basis = orthonormal(own, weights)
        complement = padding.plus_diagonal(-basis @ (basis.mT @ own), 1.0)
        inner = complement @ other @ complement.mT
    return ((phi @ inner) * phi).sum(-1).clamp(min=0)


def _jitter_of(matrix: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return the relative jitter, the trace ``(..., 1, 1)`` or 1 where it is 0, and the
    identity."""
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    trace = trace.where(trace > torch.finfo(matrix.dtype).tiny, 1.0)
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return jitter.JITTERS[matrix.dtype][0], trace, unit


@functools.lru_cache
def _scalings(share: float, precision: float) -> tuple[float, ...]:
    """Return factors of Newton-Schulz steps that take all of [√share, 1] to 1, up to the
    precision."""
    low = share**0.5 / 2
    factors = []
    while 1 - low > 0.5 * precision**0.5:
        scaling = (3 / (1 + low + low**2)) ** 0.5
        low = 0.5 * scaling * low * (3 - scaling**2 * low**2)
        factors.append(scaling)
    return (*factors, 1.0)
