"""GP regression of values on keys through inducing inputs that all examples share (ours; MATH:
anchored GP attention).

In each head and column v_n = f(k_n) + σ ε_n, f = ψᵀ w + residual, w ~ N(0, I), ψ(x) = K⁻¹ κ(Z, x)
with K Kᵀ = κ(Z, Z): sparse GP regression at fixed inducing inputs Z (Titsias, 2009), with the
residual of variance 1 − ‖ψ‖² at the queries.

Shapes: ``...`` are leading dimensions (draws, batch), ``H`` heads, ``N`` tokens, ``M`` anchors,
``d`` columns.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probattn.functional import errors, jitter, padding
from probattn.functional.gaussian import Count, Dense, LowRank
from probattn.functional.kernels import rbf


@dataclass(frozen=True, eq=False)
class Anchored:
    """Law of w given the values, and of the output given w.

    Args:
        query, key: points ``(..., H, N, head_dim)``.
        value: V ``(..., H, N, d)``, 0 at padding.
        anchors: Z ``(H, M, head_dim)``.
        noise: σ² ``(H,)``.
        real: ``(..., 1, N)``, True where there is a token, or None.
        count: number of real tokens.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    anchors: Tensor
    noise: Tensor
    real: Tensor | None
    count: Count

    @cached_property
    def whitening(self) -> Tensor:
        """K⁻ᵀ ``(H, M, M)``, so that ψ(x)ᵀ = κ(x, Z) K⁻ᵀ."""
        tril = jitter.cholesky(rbf(self.anchors, self.anchors), "κ(Z, Z), of the anchors")
        return _inverse(tril, upper=False).mT

    @cached_property
    def key_features(self) -> Tensor:
        """ψ of the keys, 0 at padding, heads first, ``(H, ..., N, M)``."""
        real = None if self.real is None else self.real.movedim(-2, 0)
        return padding.rows(self._features(self.key), real)

    @cached_property
    def query_features(self) -> Tensor:
        """ψ of the queries ``(..., H, N, M)``."""
        return self._features(self.query).movedim(0, -3)

    @cached_property
    def precision(self) -> Tensor:
        """A = I + σ⁻² Σ ψ(k_n) ψ(k_n)ᵀ, ``(..., H, M, M)``."""
        gram = (self.key_features.mT @ self.key_features).movedim(0, -3)
        return padding.plus_diagonal(gram / self.noise[:, None, None], 1.0)

    @cached_property
    def tril(self) -> Tensor:
        """Lower-triangular L ``(..., H, M, M)`` with L Lᵀ = A⁻¹."""
        reversed_tril = jitter.cholesky(self.precision.flip(-2, -1), "A, the precision of w")
        return _inverse(reversed_tril.flip(-2, -1), upper=True).mT

    @cached_property
    def loc(self) -> Tensor:
        """Posterior mean σ⁻² A⁻¹ ψ_kᵀ V of w, ``(..., H, M, d)``."""
        # The gradient of an inverse costs half that of a Cholesky factor. All eigenvalues of A are
        # 1 or more.
        return torch.linalg.inv(self.precision) @ self._projected / self.noise[:, None, None]

    @cached_property
    def covariance(self) -> Dense:
        """Posterior covariance A⁻¹ of w in each column."""
        return Dense(self.tril, self.tril.shape[-1])

    @property
    def mean(self) -> Tensor:
        """Posterior mean of f at the queries, ``(..., H, N, d)``."""
        weights = (self.whitening @ self.loc).movedim(-3, 0)
        mean = (self._kernel(self.query) @ weights).movedim(0, -3)
        return errors.check_finite(mean, "the mean of f")

    @property
    def residual(self) -> Tensor:
        """Variance 1 − ‖ψ‖² of f at the queries given w, ``(..., H, N)``."""
        return (1 - self.query_features.square().sum(-1)).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        """Posterior variance of f at the queries ``(..., H, N)``, in (0, 1]; 1 is the prior's."""
        return self.residual + (self.query_features @ self.tril).square().sum(-1)

    @property
    def evidence(self) -> Tensor:
        """log N(V; 0, ψ_k ψ_kᵀ + σ² I) in nats, over columns and real tokens, ``(..., H)``."""
        factor = self.key_features.movedim(0, -3)
        keys = LowRank(factor, self.noise.unsqueeze(-1), self.real, self.count)
        return keys.log_density(self.value)

    @cached_property
    def _projected(self) -> Tensor:
        """ψ_kᵀ V, ``(..., H, M, d)``."""
        return (self.key_features.mT @ self.value.movedim(-3, 0)).movedim(0, -3)

    # The heads come first here, (H, ..., N, M), so that a product with a head's matrix is one
    # product for all examples.

    def _kernel(self, points: Tensor) -> Tensor:
        """κ(x, Z) of points ``(..., H, N, head_dim)``."""
        points = points.movedim(-3, 0)
        return rbf(points.flatten(1, -2), self.anchors).unflatten(1, points.shape[1:-1])

    def _features(self, points: Tensor) -> Tensor:
        """ψ of points ``(..., H, N, head_dim)``."""
        kernel = self._kernel(points)
        return (kernel.flatten(1, -2) @ self.whitening).view_as(kernel)


def _inverse(triangle: Tensor, *, upper: bool) -> Tensor:
    """Return the inverse of small triangular matrices ``(..., M, M)``, whose products are faster
    than solves."""
    identity = torch.eye(triangle.shape[-1], dtype=triangle.dtype, device=triangle.device)
    return torch.linalg.solve_triangular(triangle, identity.expand_as(triangle), upper=upper)
