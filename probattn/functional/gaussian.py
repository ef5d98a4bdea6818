"""Covariances over tokens, shared by the columns of a head's output, and the densities and divergences they give.

Shapes: ``...`` are leading dimensions (draws, batch), ``H`` heads, ``N`` tokens, ``d`` columns. Padding has no
correlation with real tokens and counts nothing; values there must equal their mean.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probattn.functional import jitter, triangular

Count = int | Tensor
"""The number of real tokens: one for all, or ``(..., 1)`` for each example."""


class Covariance(ABC):
    """Σ ``(..., H, N, N)`` in a form that can be factorised once."""

    count: Count

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """``(..., H, N)``."""

    @abstractmethod
    def quadratic(self, x: Tensor) -> Tensor:
        """tr(xᵀ Σ⁻¹ x) for x ``(..., H, N, d)``, which is tr(Σ⁻¹ x xᵀ): ``(..., H)``."""

    @abstractmethod
    def log_det(self) -> Tensor:
        """log |Σ| over real tokens, ``(..., H)``."""

    @abstractmethod
    def relative_trace(self, prior: "Covariance") -> Tensor:
        """tr(P⁻¹ Σ) − n for the covariance P of the prior, over real tokens, ``(..., H)``.

        Raises:
            NotImplementedError: no closed form for this pair of covariances.
        """

    @abstractmethod
    def draw(self, shape: torch.Size) -> Tensor:
        """Noise of this covariance, ``shape`` being ``(..., H, N, d)``."""

    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of Σ, ``(..., H, N)``."""

    def log_density(self, x: Tensor) -> Tensor:
        """log N(x; 0, Σ) in nats, summed over the d columns, for x ``(..., H, N, d)``: ``(..., H)``."""
        return self.log_peak(x.shape[-1]) - 0.5 * self.quadratic(x)

    def log_peak(self, columns: int) -> Tensor:
        """log N(0; 0, Σ) in nats, summed over so many columns, ``(..., H)``."""
        return -0.5 * columns * (self.log_det() + self.count * math.log(2 * math.pi))


@dataclass(frozen=True, eq=False)
class Dense(Covariance):
    """Σ = L Lᵀ; the rows of L at padding are those of the identity.

    Args:
        tril: L ``(..., H, N, N)``.
        count: number of real tokens.
        real: ``(..., 1, N)``, True where there is a token, or None.
    """

    tril: Tensor
    count: Count
    real: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """``(..., H, N)``."""
        return self.tril.shape[:-1]

    def quadratic(self, x: Tensor) -> Tensor:
        """‖L⁻¹ x‖²."""
        return triangular.solve_lower(self.tril, x).square().sum((-2, -1))

    def log_det(self) -> Tensor:
        """2 Σ log L_ii."""
        return triangular.log_det(self.tril)

    def relative_trace(self, prior: Covariance) -> Tensor:
        """The quadratic form of L's rows at real tokens, − n."""
        return prior.quadratic(_rows_at_real(self.tril, self.real)) - self.count

    def draw(self, shape: torch.Size) -> Tensor:
        """L ε, 0 at padding."""
        return _rows_at_real(triangular.product(self.tril, self.tril.new_empty(shape).normal_()), self.real)

    def variance(self) -> Tensor:
        """Row sums of L²."""
        return self.tril.square().sum(-1)


@dataclass(frozen=True, eq=False)
class Conditional(Covariance):
    """Σ = P − P Aᵀ M⁻¹ A P, of x given y, for x ~ N(0, P), y | x ~ N(A x, S) and M = A P Aᵀ + S.

    Σ itself is never factorised: where y says much of x it is near singular. It is drawn by Matheron's rule and its
    density follows from Bayes' rule; both need the factors of P = L Lᵀ, S and M alone.

    Args:
        prior: P.
        noise: gives S, of the observation given x, where it is asked for.
        marginal: gives M, of the observation.
        gain: G = (A L)ᵀ ``(..., H, N, N)``, 0 at padding.
    """

    prior: Dense
    noise: Callable[[], Dense]
    marginal: Callable[[], Dense]
    gain: Tensor

    @property
    def count(self) -> Count:
        """The prior's."""
        return self.prior.count

    @property
    def shape(self) -> torch.Size:
        """``(..., H, N)``."""
        return self.prior.shape

    @cached_property
    def _explained(self) -> Tensor:
        """E = L_M⁻¹ Gᵀ, M = L_M L_Mᵀ, with which Σ = L (I − Eᵀ E) Lᵀ."""
        return triangular.solve_lower(self.marginal().tril, self.gain.mT)

    def quadratic(self, x: Tensor) -> Tensor:
        """‖L⁻¹ x‖² + ‖L_S⁻¹ Gᵀ L⁻¹ x‖², since Σ⁻¹ = P⁻¹ + Aᵀ S⁻¹ A."""
        whitened = triangular.solve_lower(self.prior.tril, x)
        return whitened.square().sum((-2, -1)) + self.noise().quadratic(triangular.product(self.gain.mT, whitened))

    def log_det(self) -> Tensor:
        """log |P| + log |S| − log |M|."""
        return self.prior.log_det() + self.noise().log_det() - self.marginal().log_det()

    def relative_trace(self, prior: Covariance) -> Tensor:
        """−‖E‖² where the prior is P itself, by which another one's trace is corrected."""
        if prior is self.prior:
            return -self._explained.square().sum((-2, -1))
        return self.prior.relative_trace(prior) - prior.quadratic(self.prior.tril @ self._explained.mT)

    def draw(self, shape: torch.Size) -> Tensor:
        """L (w − Eᵀ L_M⁻¹ (Gᵀ w + L_S ε)): a draw of x and y, moved to y = 0; 0 at padding."""
        w, noise = (self.gain.new_empty(shape).normal_() for _ in range(2))
        seen = triangular.product(self.gain.mT, w) + triangular.product(self.noise().tril, noise)
        w = w - triangular.product(self._explained.mT, triangular.solve_lower(self.marginal().tril, seen))
        return _rows_at_real(triangular.product(self.prior.tril, w), self.prior.real)

    def variance(self) -> Tensor:
        """Row sums of L² less those of (L Eᵀ)²."""
        return self.prior.variance() - (self.prior.tril @ self._explained.mT).square().sum(-1)


@dataclass(frozen=True, eq=False)
class LowRank(Covariance):
    """Σ = diag(noise) + U Uᵀ by Woodbury, linear in the number of tokens; rows of U are 0 at padding.

    Args:
        factor: U ``(..., H, N, m)``.
        noise: σ² > 0 of each token, broadcast against ``(..., H, N)``; its value at padding has no meaning.
        real: ``(..., 1, N)``, True where there is a token, or None.
        count: number of real tokens.
    """

    factor: Tensor
    noise: Tensor
    real: Tensor | None
    count: Count

    @property
    def shape(self) -> torch.Size:
        """``(..., H, N)``."""
        return self.factor.shape[:-1]

    @cached_property
    def _scaled(self) -> Tensor:
        """U/σ², ``(..., H, N, m)``."""
        return self.factor / self.noise.unsqueeze(-1)

    @cached_property
    def capacitance(self) -> Tensor:
        """Cholesky factor of I + Uᵀ(U/σ²), ``(..., H, m, m)``."""
        gram = self.factor.mT @ self._scaled
        return jitter.cholesky(gram + torch.eye(gram.shape[-1]).to(gram), "I + UᵀU/σ²")

    def whitened(self, x: Tensor) -> Tensor:
        """R⁻¹ (U/σ²)ᵀ x, R Rᵀ = I + Uᵀ(U/σ²): ``(..., H, m, d)``."""
        return triangular.solve_lower(self.capacitance, triangular.product(self._scaled.mT, x))

    def quadratic(self, x: Tensor) -> Tensor:
        """‖x/σ‖² − ‖R⁻¹ (U/σ²)ᵀ x‖²."""
        return self.quadratic_of(x, self.whitened(x))

    def quadratic_of(self, x: Tensor, whitened: Tensor) -> Tensor:
        """The same, where :meth:`whitened` of x is known."""
        return (x.square() / self.noise.unsqueeze(-1)).sum((-2, -1)) - whitened.square().sum((-2, -1))

    def log_det(self) -> Tensor:
        """Σ log σ² + log |I + Uᵀ(U/σ²)|."""
        noise = _over_real(self.noise.log().expand(self.shape), self.real).sum(-1)
        return noise + triangular.log_det(self.capacitance)

    def relative_trace(self, prior: Covariance) -> Tensor:
        """Σ σ²_i (P⁻¹)_ii + tr(Uᵀ P⁻¹ U) − n, for a prior of the same form."""
        if not isinstance(prior, LowRank):
            raise NotImplementedError(f"no closed form of tr(P⁻¹ Σ) for LowRank Σ and {type(prior).__name__} P")
        rows = triangular.solve_lower(prior.capacitance, prior._scaled.mT).square().sum(-2)
        diagonal = (_over_real(self.noise, prior.real) * (1 / prior.noise - rows)).sum(-1)
        return diagonal + prior.quadratic(self.factor) - self.count

    def draw(self, shape: torch.Size) -> Tensor:
        """σ ε₁ + U ε₂, 0 at padding."""
        inner = self.factor.new_empty((*shape[:-2], self.factor.shape[-1], shape[-1])).normal_()
        scale = _over_real(self.noise.sqrt(), self.real).unsqueeze(-1)
        return scale * self.factor.new_empty(shape).normal_() + triangular.product(self.factor, inner)

    def variance(self) -> Tensor:
        """σ² + row sums of U²."""
        return self.noise + self.factor.square().sum(-1)

    def between(self, x: Tensor) -> Tensor:
        """xᵀ Σ x for x ``(..., H, N, m)``, 0 at padding: ``(..., H, m, m)``."""
        inner = self.factor.mT @ x
        return x.mT @ (self.noise.unsqueeze(-1) * x) + inner.mT @ inner

    def explained(self, inner: Tensor) -> Tensor:
        """tr(Σ⁻¹ U J Uᵀ) for J ``(..., H, m, m)``: ``(..., H)``; UᵀΣ⁻¹U = I − (I + UᵀU/σ²)⁻¹."""
        solved = torch.cholesky_solve(inner, self.capacitance)
        return (inner - solved).diagonal(dim1=-2, dim2=-1).sum(-1)


def kl_divergence(loc: Tensor, q: Covariance, p: Covariance) -> Tensor:
    """KL(N(loc, q) ‖ N(0, p)) in nats, summed over the columns of loc ``(..., H, N, d)``: ``(..., H)``.

    Where q is p itself, that is the quadratic form of loc alone.
    """
    if q is p:
        return 0.5 * p.quadratic(loc)
    spread = q.relative_trace(p) + p.log_det() - q.log_det()
    return 0.5 * (p.quadratic(loc) + loc.shape[-1] * spread)


def _rows_at_real(x: Tensor, real: Tensor | None) -> Tensor:
    """x ``(..., H, N, d)`` with its rows at padding set to 0."""
    return x if real is None else x.where(real.unsqueeze(-1), 0.0)


def _over_real(x: Tensor, real: Tensor | None) -> Tensor:
    return x if real is None else x * real
