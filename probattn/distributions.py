"""Distributions of what a layer draws at every token, and of labels that remember their logits' normaliser."""

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from probattn.functional import gaussian
from probattn.functional.gaussian import Covariance


class ColumnNormal(dist.TorchDistribution):
    """Gaussian over tokens whose d columns in each head are independent and share one covariance.

    Its event is ``(H, N, d)``, so that a site has the batch shape that plates and draws know. Padding counts nothing.

    Args:
        loc: ``(..., H, N, d)``.
        covariance: of shape ``(..., H, N)``.
    """

    arg_constraints = {"loc": constraints.independent(constraints.real, 3)}
    support = constraints.independent(constraints.real, 3)
    has_rsample = True

    def __init__(self, loc: Tensor, covariance: Covariance) -> None:
        shape = torch.broadcast_shapes(loc.shape[:-1], covariance.shape)
        self.loc, self.covariance = loc.expand(*shape, loc.shape[-1]), covariance
        super().__init__(shape[:-2], self.loc.shape[-3:], validate_args=False)

    def expand(self, batch_shape: tuple[int, ...], _instance: None = None) -> "ColumnNormal":
        """The same with a larger batch shape."""
        return ColumnNormal(self.loc.expand(*batch_shape, *self.event_shape), self.covariance)

    @property
    def mean(self) -> Tensor:
        """loc."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance of every scalar."""
        return self.covariance.variance().unsqueeze(-1).expand_as(self.loc)

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws ``(*sample_shape, ..., H, N, d)``, differentiable in loc and covariance."""
        return self.loc + self.covariance.draw(self._extended_shape(torch.Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density in nats, ``(...)``."""
        return self.covariance.log_density(value - self.loc).sum(-1)


class MarginalWithJointKL(dist.TorchDistribution):
    """Draws from one distribution, and counts a KL that is known for the larger one that it stands for.

    Marginal draws of SGPA stand for joint ones, whose KL is not that of the marginals. The log density is the prior's
    plus that KL, so that both ELBOs count it exactly.

    Args:
        drawn: what draws come from.
        prior: the site's prior.
        kl: ``(...)``, in nats.
    """

    arg_constraints = {}

    def __init__(self, drawn: dist.TorchDistribution, prior: dist.TorchDistribution, kl: Tensor) -> None:
        self.drawn, self.prior, self.kl = drawn, prior, kl
        super().__init__(drawn.batch_shape, drawn.event_shape, validate_args=False)

    has_rsample = True

    def expand(self, batch_shape: tuple[int, ...], _instance: None = None) -> "MarginalWithJointKL":
        """The same with a larger batch shape."""
        return MarginalWithJointKL(
            self.drawn.expand(batch_shape), self.prior.expand(batch_shape), self.kl.expand(batch_shape)
        )

    @property
    def support(self) -> constraints.Constraint:
        """The prior's."""
        return self.prior.support

    @property
    def mean(self) -> Tensor:
        """The mean of the draws."""
        return self.drawn.mean

    @property
    def variance(self) -> Tensor:
        """The variance of the draws."""
        return self.drawn.variance

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """A draw."""
        return self.drawn.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The prior's log density plus the KL."""
        return self.prior.log_prob(value) + self.kl


class CategoricalWithEnergy(dist.Categorical):
    """Categorical distribution of logits that keeps their free energy, which normalising them removes.

    Args:
        logits: ``(..., classes)``, of any normalisation.

    Attributes:
        energy: −log Σ_c exp(logit_c), of the batch shape (Liu et al., 2020, eq. 4).
    """

    def __init__(self, logits: Tensor, *, validate_args: bool | None = None) -> None:
        super().__init__(logits=logits, validate_args=validate_args)
        self.energy = -logits.logsumexp(-1)

    def expand(
        self, batch_shape: torch.Size, _instance: "CategoricalWithEnergy | None" = None
    ) -> "CategoricalWithEnergy":
        """The same distribution with another batch shape."""
        new = super().expand(batch_shape, _instance=self._get_checked_instance(CategoricalWithEnergy, _instance))
        new.energy = self.energy.expand(batch_shape)
        return new


class OrderedCategorical(dist.Categorical):
    """Categorical distribution of classes that have an order, so that a miss by one is better than one by two."""


@register_kl(ColumnNormal, ColumnNormal)
def _kl_column_normal(q: ColumnNormal, p: ColumnNormal) -> Tensor:
    if q is p:
        return q.loc.new_zeros(q.batch_shape)
    return gaussian.kl_divergence(q.loc - p.loc, q.covariance, p.covariance).sum(-1)


@register_kl(MarginalWithJointKL, dist.Distribution)
def _kl_marginal_with_joint_kl(q: MarginalWithJointKL, p: dist.Distribution) -> Tensor:
    return q.kl
