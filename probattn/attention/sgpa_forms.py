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
    """Tokens of a batch: points q, their kernel, values (0 at padding), mask, lengths."""

    points: Tensor  # (..., H, N, d)
    kernel: Tensor  # (..., H, N, N), 0 at padding
    value: Tensor  # (..., H, N, d)
    real: Tensor | None  # (B, 1, N)
    lengths: int | Tensor  # N or (B, 1)


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

    def marginal(self, layer: "SGPAttention", tokens: Tokens, x: Tensor) -> Remainder:
        """Return g for independent draws at the tokens; the KL is that of joint draws, ½ vᵀ C v."""
        a, mean = self._mean(layer, tokens)
        scale = sgpa.conditional_variance(layer.kernel.diagonal(tokens.points), a).sqrt()
        return Remainder(a, *_marginals(mean, scale, scale, sgpa.local_kl(tokens.value, mean)))

    def joint(self, layer: "SGPAttention", tokens: Tokens, x: Tensor) -> Remainder:
        """Return g for draws with their correlations."""
        a, mean = self._mean(layer, tokens)
        c = padding.plus_diagonal(sgpa.conditional_covariance(tokens.kernel, a), 0.0, tokens.real)
        tril = jitter.cholesky(c, "C, the covariance of g", jitter.mean_diagonal(tokens.kernel))
        covariance = Dense(tril, tokens.lengths, tokens.real)
        return Remainder(
            a, ColumnNormal(torch.zeros_like(mean), covariance), ColumnNormal(mean, covariance)
        )

    def _mean(self, layer: "SGPAttention", tokens: Tokens) -> tuple[Tensor, Tensor]:
        beta = layer.inducing_points()
        tril = jitter.cholesky(layer.kernel(beta, beta), "K_ββ, the kernel of the inducing inputs")
        k_qb = layer.kernel(tokens.points, beta)
        a = sgpa.features(
            k_qb if tokens.real is None else k_qb.where(tokens.real.unsqueeze(-1), 0.0), tril
        )
        return a, sgpa.conditional_mean(tokens.kernel, a, tokens.value)


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

    def marginal(self, layer: "SGPAttention", tokens: Tokens, x: Tensor) -> Remainder:
        """Return g for independent draws at the tokens; the KL is that of joint draws."""
        tril, spread, mean = self._root(tokens, x)
        squares = tril.square()
        scale = (squares @ spread.square().unsqueeze(-1)).squeeze(-1).sqrt()
        kl = sgpa.amortised_kl(tokens.value, mean, spread)
        return Remainder(None, *_marginals(mean, squares.sum(-1).sqrt(), scale, kl))

    def joint(self, layer: "SGPAttention", tokens: Tokens, x: Tensor) -> Remainder:
        """Return g for draws with their correlations."""
        tril, spread, mean = self._root(tokens, x)
        prior = ColumnNormal(torch.zeros_like(mean), Dense(tril, tokens.lengths, tokens.real))
        posterior = Dense(tril * spread.unsqueeze(-2), tokens.lengths, tokens.real)
        return Remainder(None, prior, ColumnNormal(mean, posterior))

    def _root(self, tokens: Tokens, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tril = jitter.cholesky(
            padding.plus_diagonal(tokens.kernel, 0.0, tokens.real), "K, the kernel of the tokens"
        )
        spread = 1e-3 + F.softplus(dtypes.at_least_float32(dtypes.apply_linear(self.spread, x))).mT
        spread = spread if tokens.real is None else spread.where(tokens.real, 1.0)
        return tril, spread, tokens.kernel @ tokens.value


def _marginals(
    mean: Tensor, prior_scale: Tensor, scale: Tensor, kl: Tensor
) -> tuple[dist.Normal, MarginalsOfJoint]:
    """Return prior and posterior with those means and standard deviations ``(..., H, N)``,
    independent over tokens."""
    mean, scale = (
        errors.check_finite(mean, "the mean of q(f)"),
        errors.check_finite(scale, "the spread of q(f)"),
    )
    prior = dist.Normal(
        torch.zeros_like(mean), prior_scale.unsqueeze(-1), validate_args=False
    ).to_event(3)
    posterior = dist.Normal(mean, scale.unsqueeze(-1), validate_args=False).to_event(3)
    return prior, MarginalsOfJoint(posterior, prior, kl)
