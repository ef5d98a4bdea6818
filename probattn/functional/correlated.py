"""Base of dense and sparse correlated GPs: two processes that depend on each other through a
canonical one.

Shapes: ``...`` are leading dimensions (draws, batch), ``H`` heads, ``N`` tokens, ``d`` columns. z_o
is the canonical process at the latent inputs of the tokens, z_q and z_k the processes at queries
and keys (CGP paper, section 3.2).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from probattn.functional import gaussian
from probattn.functional.gaussian import Count, Covariance


class Canonical(NamedTuple):
    """Law of z_o: mean ``(..., H, N, d)``, None for 0, and covariance."""

    loc: Tensor | None
    covariance: Covariance


@dataclass(frozen=True, eq=False)
class Correlated(ABC):
    """Joint law of z_o, z_q, z_k in each column, and the law of z_q given the observed z_k.

    Args:
        query, key, latent: points ``(..., H, N, head_dim)``.
        value: V ``(..., H, N, d)``, 0 at padding.
        scales: σ_q and σ_k, ``(2, H)``.
        noise: σ² ``(H,)``.
        real: ``(..., 1, N)``, True where there is a token, or None.
        count: number of real tokens.
    """

    query: Tensor
    key: Tensor
    latent: Tensor
    value: Tensor
    scales: Tensor
    noise: Tensor
    real: Tensor | None
    count: Count

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """ν = E[z_q | z_k], the attention output, ``(..., H, N, d)``."""

    @property
    @abstractmethod
    def observed_key(self) -> Tensor:
        """The observed z_k, ``(..., H, N, d)``."""

    @property
    @abstractmethod
    def prior(self) -> Covariance:
        """Covariance of z_o, whose mean is 0."""

    @property
    @abstractmethod
    def query_covariance(self) -> Covariance:
        """Covariance of z_q given z_o."""

    @property
    @abstractmethod
    def key_covariance(self) -> Covariance:
        """Covariance of z_k given z_o."""

    @property
    @abstractmethod
    def predictive(self) -> Covariance:
        """Covariance of z_q given z_k, around ν."""

    @abstractmethod
    def means(self, z_o: Tensor) -> tuple[Tensor, Tensor]:
        """Return A_q z_o = E[z_q | z_o] and A_k z_o = E[z_k | z_o] for z_o ``(..., H, N, d)``."""

    @abstractmethod
    def spreads(self, covariance: Covariance) -> Tensor:
        """Return tr(Σ⁻¹ A C Aᵀ), summed over z_q and z_k given z_o, for the covariance C of z_o:
        ``(..., H)``."""

    @abstractmethod
    def learned(self, loc: Tensor, scale: Tensor) -> Canonical:
        """Return the amortised law of z_o with a network's mean ``(..., H, N, d)`` and scale
        ``(..., H, N)`` > 0."""

    @abstractmethod
    def posterior(self) -> Canonical:
        """Return the exact p(z_o | z_k), under which z_q has mean ν and the covariance
        :attr:`predictive`."""

    @abstractmethod
    def key_evidence(self) -> Tensor:
        """Return log p(z_k) in nats, summed over columns, ``(..., H)``."""

    def log_marginal(self) -> Tensor:
        """Return log p(z_q = ν, z_k) in nats, summed over columns, ``(..., H)``: R with the exact
        posterior of z_o. z_q = ν has no residual."""
        return self.key_evidence() + self.predictive.log_peak(self.value.shape[-1])

    def regulariser(self, canonical: Canonical) -> Tensor:
        """Return R = E_q[log p(z_q = ν | z_o) + log p(z_k | z_o)] − KL(q(z_o) ‖ p(z_o)) in closed
        form, ``(..., H)``.

        The bound of CGP paper, eq. 28, on log p(z_q = ν, z_k), in nats, summed over columns.

        Args:
            canonical: q(z_o); a mean of None stands for the prior.
        """
        loc, covariance = canonical
        query = self.mean
        key = self.observed_key
        if loc is not None:
            query, key = (
                value - mean for value, mean in zip((query, key), self.means(loc), strict=True)
            )
        densities = self.query_covariance.log_density(query) + self.key_covariance.log_density(key)
        densities = densities - 0.5 * self.value.shape[-1] * self.spreads(covariance)
        return (
            densities
            if loc is None
            else densities - gaussian.kl_divergence(loc, covariance, self.prior)
        )
