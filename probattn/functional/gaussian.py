"""Covariances over tokens, shared by the columns of a head's output, with their densities and
divergences.

Shapes: ``...`` are leading dimensions (draws, batch), ``H`` heads, ``N`` tokens, ``d`` columns.
Padding is uncorrelated with real tokens and contributes nothing; values there must equal their
mean.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probattn.functional import jitter, padding, triangular

Count = int | Tensor
"""Number of real tokens: one for all, or ``(..., 1)`` for each example."""


class Covariance(ABC):
    """Covariance Σ ``(..., H, N, N)`` in a form that is factorised once."""

    count: Count

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """``(..., H, N)``."""

    @abstractmethod
    def quadratic(self, x: Tensor) -> Tensor:
        """Return tr(xᵀ Σ⁻¹ x) = tr(Σ⁻¹ x xᵀ) for x ``(..., H, N, d)``: ``(..., H)``."""

    @abstractmethod
    def log_det(self) -> Tensor:
        """Return log |Σ| over real tokens, ``(..., H)``."""

    @abstractmethod
    def relative_trace(self, prior: "Covariance") -> Tensor:
        """Return tr(P⁻¹ Σ) − n for the covariance P of the prior, over real tokens, ``(..., H)``.

        Raises:
            NotImplementedError: no closed form for this pair of covariances.
        """

    @abstractmethod
    def draw(self, shape: torch.Size) -> Tensor:
        """Sample N(0, Σ) with a shape ``(..., H, N, d)``."""

    @abstractmethod
    def variance(self) -> Tensor:
        """Return the diagonal of Σ, ``(..., H, N)``."""

    def log_density(self, x: Tensor) -> Tensor:
        """Return log N(x; 0, Σ) in nats, summed over the d columns, for x ``(..., H, N, d)``:
        ``(..., H)``."""
        return self.log_peak(x.shape[-1]) - 0.5 * self.quadratic(x)

    def log_peak(self, columns: int) -> Tensor:
        """Return log N(0; 0, Σ) in nats, summed over that many columns, ``(..., H)``."""
        return -0.5 * columns * (self.log_det() + self.count * math.log(2 * math.pi))


@dataclass(frozen=True, eq=False)
class Dense(Covariance):
    """Dense Σ = L Lᵀ; the rows of L at padding are those of the identity.

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
        """Return ‖L⁻¹ x‖²."""
        return triangular.solve_lower(self.tril, x).square().sum((-2, -1))

    def log_det(self) -> Tensor:
        """Return 2 Σ log L_ii."""
        return triangular.log_det(self.tril)

    def relative_trace(self, prior: Covariance) -> Tensor:
        """Return the quadratic form of L's rows at real tokens, − n."""
        return prior.quadratic(padding.rows(self.tril, self.real)) - self.count

    def draw(self, shape: torch.Size) -> Tensor:
        """Return L ε, 0 at padding."""
        noise = self.tril.new_empty(shape).normal_()
        return padding.rows(triangular.product(self.tril, noise), self.real)

    def variance(self) -> Tensor:
        """Return the row sums of L²."""
        return self.tril.square().sum(-1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Inverted(Dense):
    """Dense Σ = L Lᵀ of which L⁻¹ is known: products, in place of solves.

    Args:
        root: L⁻¹ ``(..., H, N, N)``.
    """

    root: Tensor

    def quadratic(self, x: Tensor) -> Tensor:
        """Return ‖L⁻¹ x‖²."""
        return triangular.product(self.root, x).square().sum((-2, -1))

    def log_det(self) -> Tensor:
        """Return −2 Σ log (L⁻¹)_ii."""
        return -triangular.log_det(self.root)


@dataclass(frozen=True, eq=False, kw_only=True)
class Conditional(Dense):
    """Posterior Σ = L (C Cᵀ)⁻¹ Lᵀ of x given y, for x ~ N(0, P), P = L Lᵀ, y | x ~ N(A x, S) and
    C Cᵀ = I + (A L)ᵀ S⁻¹ A L.

    Σ itself is never factorised, because it is near singular where y determines x; C Cᵀ is not. In
    place of L is the root L C⁻ᵀ, which is not triangular.

    Args:
        prior: P.
        capacitance: C ``(..., H, N, N)``.
    """

    prior: Dense
    capacitance: Tensor

    def quadratic(self, x: Tensor) -> Tensor:
        """Return ‖Cᵀ L⁻¹ x‖²."""
        whitened = triangular.solve_lower(self.prior.tril, x)
        return triangular.product(self.capacitance.mT, whitened).square().sum((-2, -1))

    def log_det(self) -> Tensor:
        """Return log |P| − log |C Cᵀ|."""
        return self.prior.log_det() - triangular.log_det(self.capacitance)


def conditional(prior: Dense, gain: Tensor, noise: Dense) -> Conditional:
    """Return the law of x given y.

    Args:
        prior: P.
        gain: (A L)ᵀ ``(..., H, N, N)``, 0 at padding.
        noise: S, the covariance of the observation given x.
    """
    # L_S⁻¹ A L, and C
    whitened = triangular.solve_lower(noise.tril, gain.mT)
    matrix = padding.plus_diagonal(whitened.mT @ whitened, 1.0)
    capacitance = jitter.cholesky(matrix, "I + (A L)ᵀ S⁻¹ A L, of the posterior")
    root = prior.tril @ triangular.inverse(capacitance, upper=False).mT
    return Conditional(root, prior.count, prior.real, prior=prior, capacitance=capacitance)


@dataclass(frozen=True, eq=False)
class LowRank(Covariance):
    """Low-rank Σ = diag(noise) + U Uᵀ by Woodbury's identity, linear in N; rows of U are 0 at
    padding.

    Args:
        factor: U ``(..., H, N, m)``.
        noise: σ² > 0 of each token, broadcast against ``(..., H, N)``; its value at padding is not
            used.
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
    def root(self) -> Tensor:
        """R⁻¹, R Rᵀ = I + Uᵀ(U/σ²), of norm at most 1, ``(..., H, m, m)``."""
        matrix = padding.plus_diagonal(self.factor.mT @ self._scaled, 1.0)
        return triangular.inverse_factor(matrix, jitter.cholesky(matrix, "I + UᵀU/σ²"))

    def whitened(self, x: Tensor) -> Tensor:
        """Return R⁻¹ (U/σ²)ᵀ x: ``(..., H, m, d)``."""
        return triangular.product(self.root, triangular.product(self._scaled.mT, x))

    def quadratic(self, x: Tensor) -> Tensor:
        """Return ‖x/σ‖² − ‖R⁻¹ (U/σ²)ᵀ x‖²."""
        return self.quadratic_of(x, self.whitened(x))

    def quadratic_of(self, x: Tensor, whitened: Tensor) -> Tensor:
        """Return :meth:`quadratic` of x, from its :meth:`whitened` form."""
        whole = (x.square() / self.noise.unsqueeze(-1)).sum((-2, -1))
        return whole - whitened.square().sum((-2, -1))

    def log_det(self) -> Tensor:
        """Return Σ log σ² + log |I + Uᵀ(U/σ²)|."""
        noise = self._at_real(self.noise.log().expand(self.shape)).sum(-1)
        return noise - triangular.log_det(self.root)

    def relative_trace(self, prior: Covariance) -> Tensor:
        """Return Σ σ²_i (P⁻¹)_ii + tr(Uᵀ P⁻¹ U) − n, for a prior of the same form."""
        if not isinstance(prior, LowRank):
            raise NotImplementedError(
                f"no closed form of tr(P⁻¹ Σ) for LowRank Σ and {type(prior).__name__} P"
            )
        # diag(P⁻¹) = 1/σ²_p − ‖rows of R⁻¹ (U/σ²)ᵀ‖²
        explained = (prior.root @ prior._scaled.mT).square().sum(-2)
        precision = 1 / prior.noise - explained
        diagonal = (self._at_real(self.noise) * precision).sum(-1)
        return diagonal + prior.quadratic(self.factor) - self.count

    def draw(self, shape: torch.Size) -> Tensor:
        """Return σ ε₁ + U ε₂, 0 at padding."""
        # ε₂ (..., H, m, d), ε₁ (..., H, N, d)
        inner = self.factor.new_empty((*shape[:-2], self.factor.shape[-1], shape[-1])).normal_()
        noise = self.factor.new_empty(shape).normal_()
        scale = self._at_real(self.noise.sqrt()).unsqueeze(-1)
        return scale * noise + triangular.product(self.factor, inner)

    def variance(self) -> Tensor:
        """Return σ² plus the row sums of U²."""
        return self.noise + self.factor.square().sum(-1)

    def between(self, x: Tensor) -> Tensor:
        """Return xᵀ Σ x for x ``(..., H, N, m)``, 0 at padding: ``(..., H, m, m)``."""
        inner = self.factor.mT @ x
        return x.mT @ (self.noise.unsqueeze(-1) * x) + inner.mT @ inner

    def explained(self, inner: Tensor) -> Tensor:
        """Return tr(Σ⁻¹ U J Uᵀ) for J ``(..., H, m, m)``: ``(..., H)``; UᵀΣ⁻¹U = I − (I +
        UᵀU/σ²)⁻¹."""
        # tr J, and the trace of R⁻ᵀ R⁻¹ J
        trace = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
        return trace - (self.root @ inner * self.root).sum((-2, -1))

    def _at_real(self, x: Tensor) -> Tensor:
        return x if self.real is None else x * self.real


def kl_divergence(loc: Tensor, q: Covariance, p: Covariance) -> Tensor:
    """Return KL(N(loc, q) ‖ N(0, p)) in nats, summed over the columns of loc ``(..., H, N, d)``:
    ``(..., H)``.

    If q is p itself, that is the quadratic form of loc.
    """
    if q is p:
        return 0.5 * p.quadratic(loc)
    spread = q.relative_trace(p) + p.log_det() - q.log_det()
    return 0.5 * (p.quadratic(loc) + loc.shape[-1] * spread)
