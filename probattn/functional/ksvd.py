"""Kernel singular value decomposition of the attention kernel (KEP-SVGP paper, section 3.2, eqs.
10-13).

Shapes: ``...`` are leading dimensions (draws, batch), ``N`` tokens, ``H`` heads, ``d`` head width,
``s`` rank.
"""

import torch
from torch import Tensor

from probattn.functional import errors, products

Scores = tuple[Tensor, Tensor, Tensor, Tensor]
"""E, R, W_e and W_r."""


def cosine_features(x: Tensor) -> Tensor:
    """Return the feature map of the cosine kernel, φ(x) = x / ‖x‖ (section 3.2); a zero row stays
    zero.

    Args:
        x: queries or keys ``(..., d)``.
    """
    return x * products.inverse_norm(x)


def spaced_rows(x: Tensor, count: int, mask: Tensor | None = None) -> Tensor:
    """Return evenly spaced rows f(X) of each sequence, from its real tokens only.

    Of example b with n_b real tokens, these are real tokens number ⌊linspace(0, n_b − 1, p_b)⌋ with
    p_b = min(n_b, count); the remaining rows are zero and do not contribute to f(X)ᵀ W.

    Args:
        x: sequences ``(..., B, N, D)``.
        count: maximum number of rows.
        mask: ``(B, N)``, True where there is a token.

    Returns:
        ``(..., B, min(N, count), D)``.
    """
    tokens = x.shape[-2]
    # Further rows of masked sequences are zero, so that one program holds for all lengths.
    rows = min(tokens, count) if mask is None or errors.may_branch() else count
    step = torch.arange(rows, device=x.device)
    if mask is None:
        if rows == tokens:
            return x
        return x[..., step * (tokens - 1) // max(rows - 1, 1), :]
    # n_b and p_b, (B, 1)
    lengths = mask.sum(-1, keepdim=True)
    used = lengths.clamp(max=rows)
    # Which of the real tokens, (B, rows)
    nth = step * (lengths - 1) // (used - 1).clamp(min=1)
    # Positions of tokens, the real ones first, (B, N)
    positions = mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    index = positions.gather(-1, nth.clamp(max=tokens - 1)).unsqueeze(-1)
    picked = x.gather(-2, index.expand(*x.shape[:-2], rows, x.shape[-1]))
    return picked.where((step < used).unsqueeze(-1), 0.0)


def data_dependent_weights(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the projection weights W_{e|X} = f(X)ᵀ W_e of each head (section 3.2).

    Args:
        rows: f(X), split into heads, ``(..., P, H, d)``.
        weights: ``(H, P', s)`` with P' ≥ P; the first P rows are used.

    Returns:
        ``(..., H, d, s)``.
    """
    return torch.einsum("...phd,hps->...hds", rows, weights[:, : rows.shape[-3]])


def scores(x: Tensor, weights: Tensor) -> Tensor:
    """Return the projection scores E = φ(X) W of the cosine feature map (eq. 10).

    The result is a view of Eᵀ, with tokens last in memory: products with few columns are several
    times slower than products with few rows.

    Args:
        x: queries or keys ``(..., H, N, d)``.
        weights: ``(..., H, d, s)``.

    Returns:
        ``(..., H, N, s)``.
    """
    return products.of_unit_rows(x, weights).mT


def objective(
    e: Tensor,
    r: Tensor,
    w_e: Tensor,
    w_r: Tensor,
    lam: Tensor,
) -> Tensor:
    """Return the KSVD objective J = −½ tr(E Λ⁻¹ Eᵀ) − ½ tr(R Λ⁻¹ Rᵀ) + tr(W_eᵀ W_r) (eq. 11 before
    its square).

    J is 0 at any set of exact singular triplets, where its gradient in W_e and W_r vanishes.

    Args:
        e, r: scores ``(..., H, N, s)``, zero at padding.
        w_e, w_r: their weights, ``(..., H, d, s)``.
        lam: λ > 0, ``(H, s)``.

    Returns:
        ``(..., H)``, not divided by the number of tokens.
    """
    return _coupling(w_e, w_r) - _explained(e, r, lam)


def _explained(e: Tensor, r: Tensor, lam: Tensor) -> Tensor:
    """Return the variance terms of (11), ½ tr(E Λ⁻¹ Eᵀ) + ½ tr(R Λ⁻¹ Rᵀ), ``(..., H)``."""
    # ‖e_s‖² + ‖r_s‖² of each column s, (..., H, s)
    energy = e.square().sum(-2) + r.square().sum(-2)
    return 0.5 * (energy / lam).sum(-1)


def _coupling(w_e: Tensor, w_r: Tensor) -> Tensor:
    """Return the coupling term of (11), tr(W_eᵀ W_r), ``(..., H)``."""
    return (w_e * w_r).sum((-2, -1))


def penalty(scores: Scores, lam: Tensor, lengths: Tensor | int) -> Tensor:
    """Return the mean over heads of (J / n)² for each example, the loss of (11) per token.

    Args:
        scores: E, R, W_e and W_r, as for :func:`objective`.
        lam: λ ``(H, s)``.
        lengths: number n of real tokens, one int or ``(B, 1)``.

    Returns:
        ``(..., B)``.
    """
    return (objective(*scores, lam) / lengths).square().mean(-1)


def penalty_of_mean(scores: Scores, lam: Tensor, lengths: Tensor | int) -> Tensor:
    """Return the loss of the authors' code: the square of J's mean over batch and heads, tr(W_eᵀ
    W_r) not per token.

    Its optimum is Λ = σ(K_att) / n. Arguments and shape as for :func:`penalty`; every example gets
    the same value.
    """
    e, r, w_e, w_r = scores
    per_head = _coupling(w_e, w_r) - _explained(e, r, lam) / lengths
    # J's mean over batch and heads, (..., 1)
    mean = per_head.mean((-2, -1)).unsqueeze(-1)
    return mean.square().expand(per_head.shape[:-1])
