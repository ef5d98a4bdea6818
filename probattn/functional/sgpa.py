"""Sparse GP attention (Chen & Li, ICLR 2023): f = A u + g, with u whitened, at every token of an
example.

Shapes: ``...`` are leading dimensions (draws, batch), ``H`` heads, ``N`` tokens, ``M`` inducing
inputs, ``d`` columns. 𝒦 is the kernel between tokens, β the inducing inputs, L Lᵀ = 𝒦_ββ, v the
tokens' values (0 at padding).
"""

import torch
from torch import Tensor

from probattn.functional import triangular


def features(k_qb: Tensor, tril: Tensor) -> Tensor:
    """Return A = 𝒦_qβ L⁻ᵀ, so that 𝒦_qβ 𝒦_ββ⁻¹ u_β = A u for u_β = L u, and A Aᵀ = 𝒦_qβ 𝒦_ββ⁻¹
    𝒦_βq.

    Args:
        k_qb: 𝒦_qβ ``(..., H, N, M)``.
        tril: L ``(H, M, M)``.

    Returns:
        ``(..., H, N, M)``.
    """
    # One small inverse for each head: faster than a solve for each example.
    return k_qb @ triangular.inverse(tril, upper=False).mT


def conditional_mean(k_qq: Tensor, a: Tensor, value: Tensor) -> Tensor:
    """Return C v, the posterior mean of g, C = 𝒦 − A Aᵀ, without forming C: ``(..., H, N, d)``."""
    # The minus sign at M rows, not at N.
    return k_qq @ value + a @ -(a.mT @ value)


def conditional_covariance(k_qq: Tensor, a: Tensor) -> Tensor:
    """Return C = 𝒦 − A Aᵀ, the covariance of g, ``(..., H, N, N)``."""
    return k_qq - a @ a.mT


def conditional_variance(k_diagonal: Tensor, a: Tensor) -> Tensor:
    """Return the diagonal of C ``(..., H, N)``, bounded below by 1e-6 (float64: 1e-12) times the
    kernel's diagonal.

    Args:
        k_diagonal: the kernel of each token with itself, ``(..., H, N)``.
        a: A ``(..., H, N, M)``.
    """
    smallest = 1e-12 if a.dtype == torch.float64 else 1e-6
    variance = k_diagonal - a.square().sum(-1)
    return torch.maximum(variance, smallest * k_diagonal)


def local_kl(value: Tensor, mean: Tensor) -> Tensor:
    """Return KL(N(C v, C) ‖ N(0, C)) = ½ vᵀ C v in nats, summed over heads and columns, from v and
    C v: ``(...)``."""
    return 0.5 * torch.linalg.vecdot(value.flatten(-3), mean.flatten(-3))


def amortised_kl(value: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """Return KL(N(𝒦 v, L T² Lᵀ) ‖ N(0, L Lᵀ)), T = diag(t), in nats, summed over heads and columns:
    ``(...)``.

    Args:
        value: v ``(..., H, N, d)``.
        mean: 𝒦 v.
        spread: t ``(..., H, N)``, 1 at padding.
    """
    # tr(T²) − log |T²| − N of each column, ``(...)``
    spreads = (spread.square() - 1 - 2 * spread.log()).sum((-2, -1))
    return local_kl(value, mean) + 0.5 * value.shape[-1] * spreads


def pick_inducing(stream: Tensor, heads: int, number: int) -> Tensor:
    """Pick random vectors of a stream, different ones for each head, and add a little noise.

    Args:
        stream: ``(..., dim)``, with at least one vector.
        heads: number of heads H.
        number: M; if the stream has fewer vectors, some are picked more than once.

    Returns:
        ``(H, M, dim)``.
    """
    vectors = stream.reshape(-1, stream.shape[-1])
    rows = torch.stack([_permuted(len(vectors), number) for _ in range(heads)])
    picked = vectors[rows.to(vectors.device)]
    noise = 1e-2 * vectors.std(correction=0)
    return picked + noise * torch.randn_like(picked)


def pick_of_heads(points: Tensor, heads: int, number: int) -> Tensor:
    """Pick inducing inputs ``(H, M, head_dim)`` as :func:`pick_inducing`, of each head in its own
    part of points."""
    # (H, M, H, head_dim), of which head h keeps the part h
    picked = pick_inducing(points, heads, number).unflatten(-1, (heads, -1))
    return picked.diagonal(dim1=0, dim2=2).movedim(-1, 0)


def _permuted(length: int, number: int) -> Tensor:
    """Return that many of 0..length − 1, each once before any comes twice."""
    rounds = -(-number // length)
    return torch.cat([torch.randperm(length) for _ in range(rounds)])[:number]
