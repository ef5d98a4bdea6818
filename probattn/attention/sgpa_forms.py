"""The two forms of SGPA, decoupled and standard, which differ in their inducing inputs."""

from typing import TYPE_CHECKING, NamedTuple

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probattn.distributions import ColumnNormal, MarginalsOfJoint
from probattn.functional import dtypes, errors, jitter, padding, sgpa
from probattn.functional.gaussian import Dense

if TYPE_CHECKING:
    from probattn.attention.sgpa import SGPAttention


class Tokens(NamedTuple):
    """Tokens of a batch: scaled points q, their kernel, values (0 at padding), which are real."""

    points: Tensor  # (..., H, N, d)
    kernel: Tensor  # (..., H, N, N), 0 at padding
    value: Tensor  # (..., H, N, d)
    real: Tensor | None  # (B, 1, N)
    number: int | Tensor  # of real tokens, N or (B, 1)


class Remainder(NamedTuple):
    """Prior and posterior of g; f = A u + g, or f = g where A is None."""

    features: Tensor | None
    prior: dist.TorchDistribution
    posterior: dist.TorchDistribution


class Decoupled(nn.Module):
    """M inducing inputs for each head, shared by all examples; g ~ N(0, C), q(g) = N(C v, C), C = 𝒦
    − A Aᵀ.

    Args:
        dim: width of the tokens.
        heads: number of heads H.
        inducing: M.
    """

    def __init__(self, dim: int, heads: int, inducing: int) -> None:
        super().__init__()
        self.inducing = nn.Parameter(torch.randn(heads, inducing, dim))

    def forward(self, layer: "SGPAttention", tokens: Tokens, x: Tensor) -> Remainder:
        """Return the laws of g for the layer's draws: joint ones, or independent ones at the
        tokens, whose KL is that of joint draws, ½ vᵀ C v."""
        kernel = layer.kernel
        beta = kernel.scaled(layer.inducing_points())
        k_bb = kernel.between(beta, beta)
        tril = jitter.cholesky(k_bb, "K_ββ, the kernel of the inducing inputs")
        k_qb = padding.rows(kernel.between(tokens.points, beta), tokens.real)
        a = sgpa.features(k_qb, tril)
        mean = sgpa.conditional_mean(tokens.kernel, a, tokens.value)
        if layer.draws == "marginal":
            scale = sgpa.conditional_variance(kernel.diagonal(tokens.points), a).sqrt()
            return _marginals(a, mean, scale, scale, sgpa.local_kl(tokens.value, mean))
        c = sgpa.conditional_covariance(tokens.kernel, a)
        c = padding.plus_diagonal(c, 0.0, tokens.real)
        tril = jitter.cholesky(c, "C, the covariance of g", jitter.mean_diagonal(tokens.kernel))
        return _joint(a, mean, tril, tril, tokens)


class Standard(nn.Module):
    """The inducing inputs are the tokens' keys; q(f) = N(𝒦 v, L T² Lᵀ), L Lᵀ = 𝒦, T = diag(t)
    computed from the tokens.

    Args:
        dim: width of the tokens.
        heads: number of heads H.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.spread = nn.Linear(dim, heads)
        nn.init.constant_(self.spread.bias, -2.25)  # softplus of it is 0.1

    def forward(self, layer: "SGPAttention", tokens: Tokens, x: Tensor) -> Remainder:
        """Return the laws of g for the layer's draws: joint ones, or independent ones at the
        tokens, whose KL is that of joint draws."""
        kernel = padding.plus_diagonal(tokens.kernel, 0.0, tokens.real)
        tril = jitter.cholesky(kernel, "K, the kernel of the tokens")
        raw = dtypes.at_least_float32(dtypes.apply_linear(self.spread, x))
        spread = 1e-3 + F.softplus(raw).mT
        if tokens.real is not None:
            spread = spread.where(tokens.real, 1.0)
        mean = tokens.kernel @ tokens.value
        if layer.draws == "joint":
            return _joint(None, mean, tril, tril * spread.unsqueeze(-2), tokens)
        # Diagonals of L Lᵀ and of L T² Lᵀ
        squares = tril.square()
        prior_variance = squares.sum(-1)
        variance = (squares @ spread.square().unsqueeze(-1)).squeeze(-1)
        kl = sgpa.amortised_kl(tokens.value, mean, spread)
        return _marginals(None, mean, prior_variance.sqrt(), variance.sqrt(), kl)


def _joint(
    features: Tensor | None,
    mean: Tensor,
    prior_tril: Tensor,
    tril: Tensor,
    tokens: Tokens,
) -> Remainder:
    """Return g with Cholesky factors ``(..., H, N, N)`` of prior and posterior."""
    prior = Dense(prior_tril, tokens.number, tokens.real)
    posterior = prior if tril is prior_tril else Dense(tril, tokens.number, tokens.real)
    zeros = torch.zeros_like(mean)
    return Remainder(features, ColumnNormal(zeros, prior), ColumnNormal(mean, posterior))


def _marginals(
    features: Tensor | None,
    mean: Tensor,
    prior_scale: Tensor,
    scale: Tensor,
    kl: Tensor,
) -> Remainder:
    """Return g with standard deviations ``(..., H, N)`` of prior and posterior, independent over
    tokens."""
    errors.check_finite(mean, "the mean of q(f)")
    errors.check_finite(scale, "the spread of q(f)")
    prior = _normal(torch.zeros_like(mean), prior_scale)
    posterior = MarginalsOfJoint(_normal(mean, scale), prior, kl)
    return Remainder(features, prior, posterior)


def _normal(mean: Tensor, scale: Tensor) -> dist.TorchDistribution:
    return dist.Normal(mean, scale.unsqueeze(-1), validate_args=False).to_event(3)
