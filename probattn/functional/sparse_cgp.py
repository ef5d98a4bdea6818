"""Correlated Gaussian processes in the space of features, linear in the number of tokens: sparse
CGP (CGP paper, section 4, appendices C and D) and RFF-CGP.

In sparse CGP the features are those of inducing inputs: Z_m connect z_q and z_o, Z_ℓ connect z_k
and z_o; both lie in the space of the latent inputs. In RFF-CGP (Mahfoozi, Yang, Li & Zhang, 2026)
they are random Fourier features, the same ones for all three.
"""

from abc import abstractmethod
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
    def _phi(self) -> Tensor:
        """Φᵀ, of the queries at a scale of 1 and of the latent inputs, ``(..., H, m, 2N)``."""

    @property
    @abstractmethod
    def _psi(self) -> Tensor:
        """Ψᵀ, of the latent inputs and of the keys at a scale of 1, ``(..., H, ℓ, 2N)``."""

    @cached_property
    def mean(self) -> Tensor:
        """σ⁻⁴ 𝒦_qm B_m⁻¹ 𝒦_mo 𝒦_oℓ B_ℓ⁻¹ 𝒦_ℓk V, right to left (33)."""
        return self._t.process @ (self._bridge @ self._seen) / self._sigma2

    @property
    def observed_key(self) -> Tensor:
        """V."""
        return self.value

    @cached_property
    def prior(self) -> LowRank:
        """Ψ_o Ψ_oᵀ + σ²I."""
        return self._low_rank(self._psi_o)

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
        """(65-67): σ²I + T_q [I + σ⁻² T_oᵀ T_o + σ⁻⁴ T_oᵀ S_o S_oᵀ T_o] T_qᵀ; means cancel."""
        t_o = self._t.canonical
        bridge = self._bridge
        inner = t_o.mT @ t_o / self._sigma2 + bridge @ bridge.mT / self._sigma2.square()
        root = jitter.cholesky(
            padding.plus_diagonal(inner, 1.0), "the predictive covariance of z_q given z_k"
        )
        return self._low_rank(self._t.process @ root)

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
        factor = scale.unsqueeze(-1) * self._psi_o
        return Canonical(
            loc, LowRank(factor, self.noise.unsqueeze(-1) * scale.square(), self.real, self.count)
        )

    def posterior(self) -> Canonical:
        """Return N(σ⁻² 𝒦_oℓ B_ℓ⁻¹ 𝒦_ℓk V, σ²I + 𝒦_oℓ B_ℓ⁻¹ 𝒦_ℓo)."""
        return Canonical(self._s_o @ self._seen, self._low_rank(self._s_o))

    def key_evidence(self) -> Tensor:
        """Return log N(V; 0, Ψ_k Ψ_kᵀ + σ²I)."""
        fit = self._keys.quadratic_of(self.value, self._seen)
        return self._keys.log_peak(self.value.shape[-1]) - 0.5 * fit

    @property
    def _sigma2(self) -> Tensor:
        return self.noise[:, None, None]

    @cached_property
    def _t(self) -> Factors:
        """T_q and T_o."""
        phi_o = self._phi.chunk(2, dim=-1)[1]
        root = jitter.cholesky(
            padding.plus_diagonal(phi_o @ phi_o.mT / self._sigma2, 1.0), "B_m, whitened"
        )
        t_q, t_o = triangular.solve_lower(root, self._phi).mT.chunk(2, dim=-2)
        return Factors(t_q * self.scales[0, :, None, None], t_o)

    @property
    def _psi_o(self) -> Tensor:
        return self._psi.chunk(2, dim=-1)[0].mT

    @cached_property
    def _keys(self) -> LowRank:
        """Ψ_k Ψ_kᵀ + σ²I, the covariance of z_k under its inducing inputs; R of B_ℓ is its
        capacitance's factor."""
        return self._low_rank(self._psi.chunk(2, dim=-1)[1].mT * self.scales[1, :, None, None])

    @cached_property
    def _seen(self) -> Tensor:
        """σ⁻² R⁻¹ Ψ_kᵀ V, ``(..., H, ℓ, d)``."""
        return self._keys.whitened(self.value)

    @cached_property
    def _s_o(self) -> Tensor:
        """S_o = Ψ_o R⁻ᵀ, ``(..., H, N, ℓ)``."""
        return triangular.solve_lower(self._keys.capacitance, self._psi_o.mT).mT

    @cached_property
    def _bridge(self) -> Tensor:
        """T_oᵀ S_o, ``(..., H, m, ℓ)``."""
        return self._t.canonical.mT @ self._s_o

    @cached_property
    def _d(self) -> Factors:
        """D_k and D_o, by the factor of B_ℓo = I + σ⁻² Ψ_oᵀ Ψ_o, whitened, which the prior has."""
        solved = triangular.solve_lower(self.prior.capacitance, self._psi)
        of_latent, of_key = solved.mT.chunk(2, dim=-2)
        return Factors(of_key * self.scales[1, :, None, None], of_latent)

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
    def _phi(self) -> Tensor:
        points = torch.cat((self.query, self.latent), dim=-2)
        return self._whitened(self.inducing_query, points, "K_mm, of the inducing inputs")

    @cached_property
    def _psi(self) -> Tensor:
        points = torch.cat((self.latent, self.key), dim=-2)
        return self._whitened(self.inducing_key, points, "K_ℓℓ, of the inducing inputs")

    def _whitened(self, inducing: Tensor, points: Tensor, name: str) -> Tensor:
        """Return L⁻¹ times the kernel of inducing inputs with points, at scale 1, 0 at padding."""
        matrix = rbf(inducing, points)
        if self.real is not None:
            matrix = matrix.where(torch.cat((self.real, self.real), dim=-1).unsqueeze(-2), 0.0)
        return triangular.solve_lower(jitter.cholesky(rbf(inducing, inducing), name), matrix)


@dataclass(frozen=True, eq=False)
class RFFCGP(FeatureCGP):
    """CGP with the kernel φ(x)ᵀφ(y) of random Fourier features: Φ = Ψ, of m rows.

    Args:
        angles: ωᵀx of queries, latent inputs and keys, ``(..., H, 3N, m/2)``.
        features: φ, from angles.
    """

    angles: Tensor
    features: Fourier

    @cached_property
    def mean(self) -> Tensor:
        """Φ_q (I − B⁻¹) E[w | V], since B⁻¹ σ⁻² Φ_oᵀ Φ_o = I − B⁻¹: no solve has N columns."""
        w = self._given_key @ (self._keys.factor.mT @ self.value / self._sigma2)
        return self._of_query(w - self._given_latent @ w)

    @cached_property
    def predictive(self) -> LowRank:
        """σ²I + Φ_q (2 B⁻¹ − B⁻² + (I − B⁻¹) V[w | V] (I − B⁻¹)) Φ_qᵀ; means cancel."""
        gain = padding.plus_diagonal(-self._given_latent, 1.0)
        inner = self._given_latent + self._given_latent @ gain + gain @ self._given_key @ gain
        root = jitter.cholesky(inner, "the predictive covariance of w given z_k")
        return self._low_rank(self._of_query(root))

    @cached_property
    def _all(self) -> Tensor:
        """φ of queries, latent inputs and keys, 0 at padding, ``(..., H, 3N, m)``."""
        real = None if self.real is None else torch.cat((self.real,) * 3, dim=-1)
        return padding.rows(self.features.functions(self.angles), real)

    @property
    def _phi(self) -> Tensor:
        return self._all[..., : 2 * self.query.shape[-2], :].mT

    @property
    def _psi(self) -> Tensor:
        return self._all[..., self.query.shape[-2] :, :].mT

    @cached_property
    def _given_latent(self) -> Tensor:
        """B⁻¹, the covariance of w' given z_o."""
        return self._covariance_given(self._psi_o)

    @cached_property
    def _given_key(self) -> Tensor:
        """V[w | z_k]."""
        return self._covariance_given(self._keys.factor)

    def _covariance_given(self, features: Tensor) -> Tensor:
        """Return (I + σ⁻² Φᵀ Φ)⁻¹; the gradient of an inverse costs less than that of a factor."""
        gram = features.mT @ features / self._sigma2
        return torch.linalg.inv(padding.plus_diagonal(gram, 1.0))

    def _of_query(self, weights: Tensor) -> Tensor:
        """Return Φ_q W for W ``(..., H, m, k)``."""
        return self._all.chunk(3, dim=-2)[0] @ (self.scales[0, :, None, None] * weights)
