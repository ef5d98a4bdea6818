"""Covariances over tokens, shared by the columns of a head's output, and the densities and divergences they give.

Shapes: ``...`` are leading dimensions (draws, batch), ``H`` heads, ``N`` tokens, ``d`` columns. Padding has no
correlation with real tokens and counts nothing; values there must equal their mean.
"""

import math
from abc import ABC, abstractmethod
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
    def relative_trace(self, other: "Covariance") -> Tensor:
        """tr(Σ⁻¹ S) − n for the covariance S of the other, over real tokens, ``(..., H)``."""

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

    def relative_trace(self, other: Covariance) -> Tensor:
        """‖L⁻¹ L_other‖² − N."""
        return self.quadratic(other.tril) - self.tril.shape[-1]

    def draw(self, shape: torch.Size) -> Tensor:
        """L ε, 0 at padding."""
        noise = self.tril @ self.tril.new_empty(shape).normal_()
        return noise if self.real is None else noise.where(self.real.unsqueeze(-1), 0.0)

    def variance(self) -> Tensor:
        """Row sums of L²."""
        return self.tril.square().sum(-1)


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
        return triangular.solve_lower(self.capacitance, self._scaled.mT @ x)

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

    def relative_trace(self, other: "LowRank") -> Tensor:
        """Σ D_i (Σ⁻¹)_ii + tr(Wᵀ Σ⁻¹ W) − n for S = diag(D) + W Wᵀ."""
        rows = triangular.solve_lower(self.capacitance, self._scaled.mT).square().sum(-2)
        diagonal = (_over_real(other.noise, self.real) * (1 / self.noise - rows)).sum(-1)
        return diagonal + self.quadratic(other.factor) - self.count

    def draw(self, shape: torch.Size) -> Tensor:
        """σ ε₁ + U ε₂, 0 at padding."""
        inner = self.factor.new_empty((*shape[:-2], self.factor.shape[-1], shape[-1])).normal_()
        scale = _over_real(self.noise.sqrt(), self.real).unsqueeze(-1)
        return scale * self.factor.new_empty(shape).normal_() + self.factor @ inner

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
    spread = p.relative_trace(q) + p.log_det() - q.log_det()
    return 0.5 * (p.quadratic(loc) + loc.shape[-1] * spread)


def _over_real(x: Tensor, real: Tensor | None) -> Tensor:
    return x if real is None else x * real
