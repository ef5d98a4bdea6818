"""Kernel-eigen pair sparse variational GP: function values, marginals and KL (KEP-SVGP paper,
section 4).

Shapes: ``...`` are leading dimensions (draws, batch), ``N`` tokens, ``H`` heads, ``s`` rank and
number of outputs. The inducing variables u of output d are row d of a matrix ``(H, s, s)``.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from probattn.functional import triangular


class Moments(NamedTuple):
    """Mean ``(..., H, s, N)`` and covariance ``(..., H, s, N, N)`` of the s outputs of each
    head."""

    mean: Tensor
    covariance: Tensor


def function_values(e: Tensor, lam: Tensor, u: Tensor) -> Tensor:
    """Return F = E Λ⁻¹ u, the s outputs at every token given one draw of the inducing variables
    (eq. 16).

    F is linear in E: for merged scores (19) in place of E, F are the merged outputs.

    Args:
        e: scores ``(..., H, N, s)``.
        lam: λ ``(H, s)``.
        u: draws ``(..., H, s, s)``, broadcast against the leading dimensions of e.

    Returns:
        ``(..., H, N, s)``.
    """
    return ((u / lam.unsqueeze(-2)) @ e.mT).mT


def function_values_per_token(
    e: Tensor,
    loc: Tensor,
    scale_tril: Tensor,
    noise: Tensor,
) -> Tensor:
    """Return F_nd = e_n (m_d + L_d ε_n), with inducing variables of its own for each token, as in
    the authors' code.

    F is one product of m and of the lower triangles of all L_d with e and its products with the
    noise, which have tokens last in memory: on a CPU in half the time of the products with whole
    matrices and tokens first.

    Args:
        e: scores divided by λ, E Λ⁻¹, ``(..., H, N, s)``.
        loc: m ``(H, s, s)``, output before inducing index.
        scale_tril: L ``(H, s, s, s)``; what is above its diagonals is not read.
        noise: ε ``(..., H, N, s)``, the same for every output.

    Returns:
        ``(..., H, N, s)``.
    """
    # Entries of a lower triangle, and e_ni ε_nj of each, (..., H, s (s + 1) / 2, N)
    row, column = torch.tril_indices(*scale_tril.shape[-2:], device=e.device)
    products = e.mT[..., row, :] * noise.mT[..., column, :]
    deviation = scale_tril[..., row, column] @ products
    return (loc @ e.mT + deviation).mT


def marginals(
    e: Tensor,
    lam: Tensor,
    loc: Tensor,
    scale_tril: Tensor,
) -> Moments:
    """Return the closed form of q(F_d) = N(E Λ⁻¹ m_d, E Λ⁻¹ S_d Λ⁻¹ Eᵀ), S_d = L_d L_dᵀ (eq. 16).

    The covariance has rank s or less: compare moments, never factorise it.

    Args:
        e: scores ``(..., H, N, s)``.
        lam: λ ``(H, s)``.
        loc: m ``(H, s, s)``, output before inducing index.
        scale_tril: L ``(H, s, s, s)``.
    """
    # E Λ⁻¹, and E Λ⁻¹ L_d of each output
    whitened = e / lam.unsqueeze(-2)
    factor = whitened.unsqueeze(-3) @ scale_tril
    mean = (whitened @ loc.mT).mT
    return Moments(mean, factor @ factor.mT)


def kl_divergence(loc: Tensor, scale_tril: Tensor, lam: Tensor) -> Tensor:
    """Return KL(q(u) ‖ N(0, Λ²)) summed over outputs, in nats (Prop. 4.1, with the bracket of B.3).

    Args:
        loc: m ``(..., H, s, s)``.
        scale_tril: L ``(..., H, s, s, s)`` with positive diagonal.
        lam: λ ``(H, s)``.

    Returns:
        ``(..., H)``.
    """
    scale = lam.unsqueeze(-2)
    # tr(Λ⁻² S_d), m_dᵀ Λ⁻² m_d and log |Λ²| − log |S_d|, (..., H, s)
    trace = (scale_tril / scale.unsqueeze(-1)).square().sum((-2, -1))
    mahalanobis = (loc / scale).square().sum(-1)
    log_det = 2 * scale.log().sum(-1) - triangular.log_det(scale_tril)
    return 0.5 * (trace + mahalanobis + log_det - loc.shape[-1]).sum(-1)
