"""Correlated Gaussian processes in the space of features, linear in the number of tokens: sparse
CGP (CGP paper, section 4, appendices C and D) and RFF-CGP.

In sparse CGP the features are those of inducing inputs: Z_m connect z_q and z_o, Z_ℓ connect z_k
and z_o; both lie in the space of the latent inputs. In RFF-CGP (Mahfoozi, Yang, Li & Zhang, 2026)
they are random Fourier features, the same ones for all three.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.functional import jitter, padding, triangular
from probattn.functional.correlated import Canonical, Correlated
from probattn.functional.feature_maps import Fourier
from probattn.functional.gaussian import LowRank
from probattn.functional.kernels import rbf
from probattn.functional.sgpa import features


class Factors(NamedTuple):
    """Factors, with one row for each token, of z_q or z_k and of z_o, ``(..., H, N, m)``."""

    process: Tensor
    canonical: Tensor


@dataclass(frozen=True, eq=False)
class FeatureCGP(Correlated):
    """CGP through features Φ of queries and latent inputs, Ψ of keys and latent inputs; every N×N
    covariance is σ²I plus a product of N×m factors.

    z_o = Ψ_o w + σ noise, z_k = Ψ_k w + σ noise, w ~ N(0, I); z_q = Φ_q w' + σ noise, with w' from
    its posterior given z_o = Φ_o w' + σ noise: N(σ⁻² B⁻¹ Φ_oᵀ z_o, B⁻¹), B = I + σ⁻² Φ_oᵀ Φ_o = R
    Rᵀ. Observed is z_k = V (34). T = Φ R⁻ᵀ.
    """

    @property
    @abstractmethod
    def _phi(self) -> Factors:
        """Φ_q, at its scale, and Φ_o, 0 at padding."""

    @property
    @abstractmethod
    def _psi(self) -> Factors:
        """Ψ_k, at its scale, and Ψ_o, 0 at padding."""

    @cached_property
    def mean(self) -> Tensor:
        """σ⁻⁴ 𝒦_qm B_m⁻¹ 𝒦_mo 𝒦_oℓ B_ℓ⁻¹ 𝒦_ℓk V (33): no solve has N columns."""
        weights = self._inverse.mT @ (self._bridge @ self._seen) / self._sigma2
        return self._phi.process @ weights

    @property
    def observed_key(self) -> Tensor:
        """V."""
        return self.value

    @cached_property
    def prior(self) -> LowRank:
        """Ψ_o Ψ_oᵀ + σ²I."""
        return self._low_rank(self._psi.canonical)

    @cached_property
    def query_covariance(self) -> LowRank:
        """𝒦_qm B_m⁻¹ 𝒦_mq + σ²I."""
        return self._low_rank(self._t.process)

    @cached_property
    def key_covariance(self) -> LowRank:
        """𝒦_kℓ B_ℓo⁻¹ 𝒦_ℓk + σ²I, with B_ℓo = 𝒦_ℓℓ + σ⁻² 𝒦_ℓo 𝒦_oℓ."""
        return self._low_rank(self._d.process)

    @cached_property
    def predictive(self) -> LowRank:
        """(65-67): σ²I + T_q [2I − R⁻¹ R⁻ᵀ + σ⁻⁴ T_oᵀ S_o S_oᵀ T_o] T_qᵀ, since σ⁻² T_oᵀ T_o is
        I − R⁻¹ R⁻ᵀ; means cancel."""
        of_keys = self._bridge / self._sigma2
        inner = of_keys @ of_keys.mT - self._inverse @ self._inverse.mT
        root = jitter.cholesky(
            padding.plus_diagonal(inner, 2.0), "the predictive covariance of z_q given z_k"
        )
        return self._low_rank(self._phi.process @ (self._inverse.mT @ root))

    def means(self, z_o: Tensor) -> tuple[Tensor, Tensor]:
        """Return σ⁻² 𝒦_qm B_m⁻¹ 𝒦_mo z_o and σ⁻² 𝒦_kℓ B_ℓo⁻¹ 𝒦_ℓo z_o."""
        query, key = (
            triangular.product(factor.process, triangular.product(factor.canonical.mT, z_o))
            for factor in (self._t, self._d)
        )
        return query / self._sigma2, key / self._sigma2

    def spreads(self, covariance: LowRank) -> Tensor:  # type: ignore[override]
        """Use that A = σ⁻² T_q T_oᵀ and Σ_q = σ²I + T_q T_qᵀ share T_q, so that every matrix is
        m×m."""
        query = self.query_covariance.explained(covariance.between(self._t.canonical))
        key = self.key_covariance.explained(covariance.between(self._d.canonical))
        return (query + key) / self.noise.square()

    def learned(self, loc: Tensor, scale: Tensor) -> Canonical:
        """Return N(m, diag(t) P diag(t)), P the prior's covariance."""
        factor = scale.unsqueeze(-1) * self._psi.canonical
        return Canonical(
            loc, LowRank(factor, self.noise.unsqueeze(-1) * scale.square(), self.real, self.count)
        )

    def posterior(self) -> Canonical:
        """Return N(σ⁻² 𝒦_oℓ B_ℓ⁻¹ 𝒦_ℓk V, σ²I + 𝒦_oℓ B_ℓ⁻¹ 𝒦_ℓo)."""
        # S_o = Ψ_o R_ℓ⁻ᵀ, (..., H, N, ℓ)
        s_o = self._psi.canonical @ self._keys.root.mT
        return Canonical(s_o @ self._seen, self._low_rank(s_o))

    def key_evidence(self) -> Tensor:
        """Return log N(V; 0, Ψ_k Ψ_kᵀ + σ²I)."""
        fit = self._keys.quadratic_of(self.value, self._seen)
        return self._keys.log_peak(self.value.shape[-1]) - 0.5 * fit

    @property
    def _sigma2(self) -> Tensor:
        return self.noise[:, None, None]

    @cached_property
    def _inverse(self) -> Tensor:
        """R⁻¹, of norm at most 1, ``(..., H, m, m)``."""
        return self._low_rank(self._phi.canonical).root

    @cached_property
    def _t(self) -> Factors:
        """T_q and T_o."""
        return Factors(*(factor @ self._inverse.mT for factor in self._phi))

    @cached_property
    def _d(self) -> Factors:
        """D_k and D_o, Ψ in place of Φ in T."""
        return Factors(*(factor @ self.prior.root.mT for factor in self._psi))

    @cached_property
    def _keys(self) -> LowRank:
        """Ψ_k Ψ_kᵀ + σ²I, the covariance of z_k under its inducing inputs; R_ℓ⁻¹ of B_ℓ is its
        root."""
        return self._low_rank(self._psi.process)

    @cached_property
    def _seen(self) -> Tensor:
        """σ⁻² R_ℓ⁻¹ Ψ_kᵀ V, ``(..., H, ℓ, d)``."""
        return self._keys.whitened(self.value)

    @cached_property
    def _bridge(self) -> Tensor:
        """T_oᵀ S_o = R⁻¹ Φ_oᵀ Ψ_o R_ℓ⁻ᵀ, ``(..., H, m, ℓ)``."""
        crossed = self._psi.canonical.mT @ self._phi.canonical
        return self._inverse @ (self._keys.root @ crossed).mT

    def _low_rank(self, factor: Tensor) -> LowRank:
        return LowRank(factor, self.noise.unsqueeze(-1), self.real, self.count)


@dataclass(frozen=True, eq=False)
class SparseCGP(FeatureCGP):
    """CGP by deterministic training conditionals.

    z_ℓ ~ N(0, 𝒦_ℓℓ), z_k | z_ℓ and z_o | z_ℓ its conditional means + σ noise, z_m | z_o by (55),
    z_q | z_m its conditional mean + σ noise. With L_m L_mᵀ = 𝒦_mm: Φ_q = 𝒦_qm L_m⁻ᵀ, Φ_o = 𝒦_om
    L_m⁻ᵀ and B_m = L_m B L_mᵀ, never formed. Likewise Ψ for ℓ.

    Args:
        inducing_query, inducing_key: Z_m ``(H, m, head_dim)`` (or with leading dimensions), Z_ℓ
            ``(H, ℓ, head_dim)``.
    """

    inducing_query: Tensor
    inducing_key: Tensor

    @cached_property
    def _phi(self) -> Factors:
        return self._whitened(self.inducing_query, self.query, 0, "K_mm, of the inducing inputs")

    @cached_property
    def _psi(self) -> Factors:
        return self._whitened(self.inducing_key, self.key, 1, "K_ℓℓ, of the inducing inputs")

    def _whitened(self, inducing: Tensor, points: Tensor, process: int, name: str) -> Factors:
        """Return the kernel of the process, and of z_o, with inducing inputs, times L⁻ᵀ."""
        tril = jitter.cholesky(rbf(inducing, inducing), name)
        kernels = rbf(points, inducing, self.scales[process].log()), rbf(self.latent, inducing)
        return Factors(*(padding.rows(features(of, tril), self.real) for of in kernels))


@dataclass(frozen=True, eq=False)
class RFFCGP(FeatureCGP):
    """CGP with the kernel φ(x)ᵀφ(y) of random Fourier features: Φ = Ψ, of m rows.

    Queries, keys and latent inputs are angles ωᵀx, ``(..., H, N, m/2)``.

    Args:
        features: φ, from angles.
    """

    features: Fourier

    @cached_property
    def _phi(self) -> Factors:
        query, _, latent = self._functions
        return Factors(self.scales[0, :, None, None] * query, latent)

    @cached_property
    def _psi(self) -> Factors:
        _, key, latent = self._functions
        return Factors(self.scales[1, :, None, None] * key, latent)

    @cached_property
    def _functions(self) -> Sequence[Tensor]:
        """φ of queries, keys and latent inputs."""
        angles = torch.stack((self.query, self.key, self.latent))
        return padding.rows(self.features.functions(angles), self.real).unbind()
