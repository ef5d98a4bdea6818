"""Exact KSVD by a dense decomposition, for explicit feature maps."""

from typing import NamedTuple

import torch
from torch import Tensor


class SingularTriplets(NamedTuple):
    """Exact solution of the shifted eigenvalue problem (13) for explicit feature maps."""

    w_e: Tensor
    w_r: Tensor
    values: Tensor
    h_e: Tensor
    h_r: Tensor


def singular_triplets(phi_q: Tensor, phi_k: Tensor, rank: int) -> SingularTriplets:
    """Compute the exact KSVD by dense SVD of K_att = φ_q φ_kᵀ: W_e = φ_kᵀ H_r, W_r = φ_qᵀ H_e (eqs.
    10, 13).

    Args:
        phi_q, phi_k: explicit features ``(..., N, d)``.
        rank: s, at most the rank of K_att.

    Returns:
        w_e, w_r ``(..., d, s)``, values ``(..., s)`` descending, h_e, h_r ``(..., N, s)``.
    """
    h_e, values, h_r = torch.linalg.svd(phi_q @ phi_k.mT, full_matrices=False)
    h_e, values, h_r = h_e[..., :rank], values[..., :rank], h_r.mT[..., :rank]
    return SingularTriplets(phi_k.mT @ h_r, phi_q.mT @ h_e, values, h_e, h_r)
