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
from probattn.functional.gaussian import Count, Dense, LowRank
from probattn.functional.triangular import inverse


@dataclass(frozen=True, eq=False)
class FeatureRegression:
    """Law of w given the values, and of the output given w.

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

    @cached_property
    def key_features(self) -> Tensor:
        """ψ of the keys, 0 at padding, ``(..., H, N, M)``."""
        return self.features.mixed(self._key_functions)

    @cached_property
    def query_features(self) -> Tensor:
        """ψ of the queries ``(..., H, N, M)``."""
        return self.features.mixed(self._query_functions)

    @cached_property
    def precision(self) -> Tensor:
        """A = I + σ⁻² Σ ψ(k_n) ψ(k_n)ᵀ, ``(..., H, M, M)``."""
        gram = self.key_features.mT @ self.key_features
        return padding.plus_diagonal(gram / self._sigma2, 1.0)

    @cached_property
    def tril(self) -> Tensor:
        """Lower-triangular L ``(..., H, M, M)`` with L Lᵀ = A⁻¹."""
        reversed_tril = jitter.cholesky(self.precision.flip(-2, -1), "A, the precision of w")
        return inverse(reversed_tril.flip(-2, -1), upper=True).mT

    @cached_property
    def loc(self) -> Tensor:
        """Posterior mean σ⁻² A⁻¹ ψ_kᵀ V of w, ``(..., H, M, d)``; for fewer tokens than features
        ψ_kᵀ (ψ_k ψ_kᵀ + σ² I)⁻¹ V, of N×N matrices."""
        # The gradient of an inverse costs half that of a Cholesky factor. All eigenvalues of A are
        # 1 or more.
        psi = self.key_features
        is_dual = errors.may_branch() and psi.shape[-2] < psi.shape[-1]
        if not is_dual:
            return torch.linalg.inv(self.precision) @ (psi.mT @ self.value) / self._sigma2
        marginal = padding.plus_diagonal(psi @ psi.mT, self.noise, self.real)
        return psi.mT @ (torch.linalg.inv(marginal) @ self.value)

    @cached_property
    def covariance(self) -> Dense:
        """Posterior covariance A⁻¹ of w in each column."""
        return Dense(self.tril, self.tril.shape[-1])

    @property
    def mean(self) -> Tensor:
        """Posterior mean of f at the queries, ``(..., H, N, d)``."""
        mixing = self.features.mixing
        weights = self.loc if mixing is None else mixing @ self.loc
        return errors.check_finite(self._query_functions @ weights, "the mean of f")

    @property
    def residual(self) -> Tensor | None:
        """Variance of f at the queries given w, ``(..., H, N)``; None where it is 0."""
        return self.features.residual(self.query_features)

    @property
    def variance(self) -> Tensor:
        """Posterior variance of f at the queries ``(..., H, N)``, at most the prior's."""
        variance = (self.query_features @ self.tril).square().sum(-1)
        return variance if self.residual is None else self.residual + variance

    @property
    def evidence(self) -> Tensor:
        """log N(V; 0, ψ_k ψ_kᵀ + σ² I) in nats, over columns and real tokens, ``(..., H)``."""
        values = LowRank(self.key_features, self.noise.unsqueeze(-1), self.real, self.count)
        return values.log_density(self.value)

    @property
    def _sigma2(self) -> Tensor:
        return self.noise[:, None, None]

    @cached_property
    def _key_functions(self) -> Tensor:
        return padding.rows(self.features.functions(self.key), self.real)

    @cached_property
    def _query_functions(self) -> Tensor:
        is_key = self.query is self.key
        return self._key_functions if is_key else self.features.functions(self.query)
