"""GP regression of values on keys in the space of M features.

In each head and column v_n = f(k_n) + σ ε_n, f = ψᵀ w (+ residual), w ~ N(0, I). With anchors as
features (see :class:`~probattn.functional.feature_maps.Anchors`) this is sparse GP regression at
fixed inducing inputs (Titsias, 2009), with the residual of variance 1 − ‖ψ‖² at the queries; with
random Fourier features it is RFF-GPA (Mahfoozi, Yang, Li & Zhang, 2026).

Shapes: ``...`` are leading dimensions (draws, batch), ``H`` heads, ``N`` tokens, ``M`` features,
``d`` columns.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probattn.functional import errors, jitter, padding
from probattn.functional.feature_maps import FeatureMap
from probattn.functional.gaussian import Conditional, Count, Covariance, Dense, LowRank
from probattn.functional.triangular import inverse


@dataclass(frozen=True, eq=False)
class FeatureRegression:
    """Law of w given the values, and of the output given w.

    For fewer tokens than features the matrices that are factorised are N×N, by Woodbury's identity.

    Args:
        features: ψ.
        query, key: points ``(..., H, N, width)``; one tensor if they are the same.
        value: V ``(..., H, N, d)``, 0 at padding.
        noise: σ² ``(H,)``.
        real: ``(..., 1, N)``, True where there is a token, or None.
        count: number of real tokens.
    """

    features: FeatureMap
    query: Tensor
    key: Tensor
    value: Tensor
    noise: Tensor
    real: Tensor | None
    count: Count

    @property
    def is_dual(self) -> bool:
        """True for N < M; False in programs for any N (see
        :func:`~probattn.functional.errors.branch_free`)."""
        return errors.may_branch() and self.key.shape[-2] < self._number

    # The heads come first here, (H, ..., N, M), so that a product with a head's matrix is one
    # product for all examples.

    @cached_property
    def key_features(self) -> Tensor:
        """ψ of the keys, 0 at padding, heads first, ``(H, ..., N, M)``."""
        return self.features.mixed(self._key_functions)

    @cached_property
    def query_features(self) -> Tensor:
        """ψ of the queries ``(..., H, N, M)``."""
        return self.features.mixed(self._query_functions).movedim(0, -3)

    @cached_property
    def precision(self) -> Tensor:
        """A = I + σ⁻² Σ ψ(k_n) ψ(k_n)ᵀ, ``(..., H, M, M)``."""
        gram = (self.key_features.mT @ self.key_features).movedim(0, -3)
        return padding.plus_diagonal(gram / self._sigma2, 1.0)

    @cached_property
    def marginal(self) -> Tensor:
        """G = ψ_k ψ_kᵀ + σ² I, the covariance of the values, ``(..., H, N, N)``."""
        kernel = (self.key_features @ self.key_features.mT).movedim(0, -3)
        return padding.plus_diagonal(kernel, self.noise, self.real)

    @cached_property
    def tril(self) -> Tensor:
        """Lower-triangular L ``(..., H, M, M)`` with L Lᵀ = A⁻¹."""
        reversed_tril = jitter.cholesky(self.precision.flip(-2, -1), "A, the precision of w")
        return inverse(reversed_tril.flip(-2, -1), upper=True).mT

    @cached_property
    def loc(self) -> Tensor:
        """Posterior mean σ⁻² A⁻¹ ψ_kᵀ V = ψ_kᵀ G⁻¹ V of w, ``(..., H, M, d)``."""
        # The gradient of an inverse costs half that of a Cholesky factor. All eigenvalues of A are
        # 1 or more.
        if not self.is_dual:
            return torch.linalg.inv(self.precision) @ self._projected / self._sigma2
        solved = torch.linalg.inv(self.marginal) @ self.value
        return (self.key_features.mT @ solved.movedim(-3, 0)).movedim(0, -3)

    @cached_property
    def prior(self) -> Dense:
        """I, the prior covariance of w, ``(H, M, M)``."""
        identity = torch.eye(self._number, dtype=self.value.dtype, device=self.value.device)
        return Dense(identity.expand(self.value.shape[-3], -1, -1), self._number)

    @cached_property
    def covariance(self) -> Covariance:
        """Posterior covariance A⁻¹ of w in each column."""
        if not self.is_dual:
            return Dense(self.tril, self.tril.shape[-1])
        gain = self.key_features.mT.movedim(0, -3)
        return Conditional(self.prior, lambda: self._noise, lambda: self._marginal, gain)

    @property
    def mean(self) -> Tensor:
        """Posterior mean of f at the queries, ``(..., H, N, d)``."""
        mixing = self.features.mixing
        weights = self.loc if mixing is None else mixing @ self.loc
        mean = self._query_functions @ weights.movedim(-3, 0)
        return errors.check_finite(mean.movedim(0, -3), "the mean of f")

    @property
    def residual(self) -> Tensor | None:
        """Variance of f at the queries given w, ``(..., H, N)``; None where it is 0."""
        return self.features.residual(self.query_features)

    @property
    def variance(self) -> Tensor:
        """Posterior variance of f at the queries ``(..., H, N)``, at most the prior's."""
        psi = self.query_features
        if self.is_dual:
            cross = self.key_features.movedim(0, -3) @ psi.mT
            explained = torch.linalg.solve_triangular(self._marginal.tril, cross, upper=False)
            variance = psi.square().sum(-1) - explained.square().sum(-2)
        else:
            variance = (psi @ self.tril).square().sum(-1)
        return variance if self.residual is None else self.residual + variance

    @property
    def evidence(self) -> Tensor:
        """log N(V; 0, ψ_k ψ_kᵀ + σ² I) in nats, over columns and real tokens, ``(..., H)``."""
        factor = self.key_features.movedim(0, -3)
        values = LowRank(factor, self.noise.unsqueeze(-1), self.real, self.count)
        return values.log_density(self.value)

    @property
    def _number(self) -> int:
        """M."""
        return self._key_functions.shape[-1]

    @property
    def _sigma2(self) -> Tensor:
        return self.noise[:, None, None]

    @cached_property
    def _noise(self) -> Dense:
        """σ² I, the covariance of the values given w."""
        zeros = torch.zeros_like(self.marginal)
        tril = padding.plus_diagonal(zeros, self.noise.sqrt(), self.real)
        return Dense(tril, self.count, self.real)

    @cached_property
    def _marginal(self) -> Dense:
        tril = jitter.cholesky(self.marginal, "G, the covariance of the values")
        return Dense(tril, self.count, self.real)

    @cached_property
    def _projected(self) -> Tensor:
        """ψ_kᵀ V, ``(..., H, M, d)``."""
        return (self.key_features.mT @ self.value.movedim(-3, 0)).movedim(0, -3)

    @cached_property
    def _key_functions(self) -> Tensor:
        real = None if self.real is None else self.real.movedim(-2, 0)
        return padding.rows(self._functions(self.key), real)

    @cached_property
    def _query_functions(self) -> Tensor:
        return self._key_functions if self.query is self.key else self._functions(self.query)

    def _functions(self, points: Tensor) -> Tensor:
        """Return the functions ``(H, ..., N, M)`` of points ``(..., H, N, width)``."""
        points = points.movedim(-3, 0)
        return self.features.functions(points.flatten(1, -2)).unflatten(1, points.shape[1:-1])
