"""Distributions of a layer's sites, and likelihoods of classes."""

import math

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from probattn.functional import gaussian
from probattn.functional.gaussian import Covariance


class ColumnNormal(dist.TorchDistribution):
    """Gaussian over tokens whose d columns in each head are independent and share one covariance.

    Its event is ``(H, N, d)``, so that a site's batch shape is that of plates and draws. Padding has no log density.

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
        """Return the same distribution with a larger batch shape."""
        return ColumnNormal(self.loc.expand(*batch_shape, *self.event_shape), self.covariance)

    @property
    def mean(self) -> Tensor:
        """Mean, loc."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Variance of every scalar."""
        return self.covariance.variance().unsqueeze(-1).expand_as(self.loc)

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Sample ``(*sample_shape, ..., H, N, d)``, differentiable in loc and covariance."""
        return self.loc + self.covariance.draw(torch.Size(sample_shape) + self.batch_shape + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density in nats, ``(...)``."""
        return self.covariance.log_density(value - self.loc).sum(-1)


class MarginalWithJointKL(dist.TorchDistribution):
    """Marginals of a joint distribution, with the known KL of the joint one.

    Marginal draws of SGPA replace joint draws, whose KL differs from that of the marginals. The log density is the
    prior's plus the joint KL, so that both ELBOs count it exactly.

    Args:
        drawn: the distribution that is sampled.
        prior: the site's prior.
        kl: ``(...)``, in nats.
    """

    arg_constraints = {}

    def __init__(self, drawn: dist.TorchDistribution, prior: dist.TorchDistribution, kl: Tensor) -> None:
        self.drawn, self.prior, self.kl = drawn, prior, kl
        super().__init__(drawn.batch_shape, drawn.event_shape, validate_args=False)

    has_rsample = True

    def expand(self, batch_shape: tuple[int, ...], _instance: None = None) -> "MarginalWithJointKL":
        """Return the same distribution with a larger batch shape."""
        return MarginalWithJointKL(
            self.drawn.expand(batch_shape), self.prior.expand(batch_shape), self.kl.expand(batch_shape)
        )

    @property
    def support(self) -> constraints.Constraint:
        """Support of the prior."""
        return self.prior.support

    @property
    def mean(self) -> Tensor:
        """Mean of the sampled distribution."""
        return self.drawn.mean

    @property
    def variance(self) -> Tensor:
        """Variance of the sampled distribution."""
        return self.drawn.variance

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Sample the marginals."""
        return self.drawn.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the prior's log density plus the KL."""
        return self.prior.log_prob(value) + self.kl


class CategoricalWithEnergy(dist.Categorical):
    """Categorical distribution that keeps its logits as they are before their normalisation, for their free energy.

    Args:
        logits: ``(..., classes)``, normalised or not.

    Attributes:
        given_logits: ``logits``.
    """

    def __init__(self, logits: Tensor, *, validate_args: bool | None = None) -> None:
        super().__init__(logits=logits, validate_args=validate_args)
        self.given_logits = logits

    @property
    def energy(self) -> Tensor:
        """Free energy −log Σ_c exp(logit_c), of the batch shape (Liu et al., 2020, eq. 4)."""
        return -self.given_logits.logsumexp(-1)

    def expand(
        self, batch_shape: torch.Size, _instance: "CategoricalWithEnergy | None" = None
    ) -> "CategoricalWithEnergy":
        """Return the same distribution with another batch shape."""
        new = super().expand(batch_shape, self.__new__(type(self)) if _instance is None else _instance)
        new.given_logits = self.given_logits.expand(*batch_shape, -1)
        return new


class WeightedCategorical(CategoricalWithEnergy):
    """Categorical distribution whose log density is multiplied by a weight of the class.

    Probabilities, entropy and samples are those without weights; ``exp(log_prob)`` does not sum to 1.

    Args:
        logits: ``(..., classes)``, normalised or not.
        class_weights: ``(classes,)``, positive.
    """

    def __init__(self, logits: Tensor, class_weights: Tensor, *, validate_args: bool | None = None) -> None:
        super().__init__(logits, validate_args=validate_args)
        self.class_weights = class_weights.expand(logits.shape)

    def expand(self, batch_shape: torch.Size, _instance: "WeightedCategorical | None" = None) -> "WeightedCategorical":
        """Return the same distribution with another batch shape."""
        new = super().expand(batch_shape, _instance)
        new.class_weights = self.class_weights.expand(*batch_shape, -1)
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Return w_value log p(value), in nats."""
        log_prob = super().log_prob(value)
        weights = self.class_weights.expand(*log_prob.shape, -1)
        return log_prob * weights.gather(-1, value.long().expand(log_prob.shape).unsqueeze(-1)).squeeze(-1)


class OrderedCategorical(dist.Categorical):
    """Categorical distribution of ordered classes, for which a miss by one is better than a miss by two."""


class DiagonalNormal(dist.MultivariateNormal):
    """Multivariate normal distribution whose ``scale_tril`` is diagonal, for a KL without triangular solves."""

    @property
    def stddev(self) -> Tensor:
        """Standard deviations, the diagonal of ``scale_tril``."""
        return self.scale_tril.diagonal(dim1=-2, dim2=-1)

    @property
    def variance(self) -> Tensor:
        """Variances, the squares of the standard deviations."""
        return self.stddev.square()


@register_kl(torch.distributions.MultivariateNormal, DiagonalNormal)
def _kl_diagonal_normal(q: torch.distributions.MultivariateNormal, p: DiagonalNormal) -> Tensor:
    return _kl_from_diagonal(q.loc - p.loc, q.scale_tril, p.stddev)


def _kl_from_diagonal(shift: Tensor, tril: Tensor, stddev: Tensor) -> Tensor:
    """Return Σ log(σ_i / L_ii) + ½ (‖L_i. / σ_i‖² + (shift_i / σ_i)² − 1)."""
    whitened = torch.cat([tril, shift.unsqueeze(-1)], dim=-1) / stddev.unsqueeze(-1)
    log_ratio = stddev.log() - tril.diagonal(dim1=-2, dim2=-1).log()
    return (log_ratio + 0.5 * whitened.square().sum(-1) - 0.5).sum(-1)


@register_kl(ColumnNormal, ColumnNormal)
def _kl_column_normal(q: ColumnNormal, p: ColumnNormal) -> Tensor:
    if q is p:
        return q.loc.new_zeros(q.batch_shape)
    return gaussian.kl_divergence(q.loc - p.loc, q.covariance, p.covariance).sum(-1)


@register_kl(MarginalWithJointKL, dist.Distribution)
def _kl_marginal_with_joint_kl(q: MarginalWithJointKL, p: dist.Distribution) -> Tensor:
    return q.kl


class CentredStudentT(dist.TorchDistribution):
    """Student-t distribution around 0 with a constant number of degrees of freedom.

    Unlike ``torch.distributions.StudentT`` it makes no tensor on the host and does not wait for the device.

    Args:
        df: degrees of freedom, above 2.
        scale: λ > 0, of the batch shape.
    """

    arg_constraints = {"scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, df: float, scale: Tensor) -> None:
        self.df, self.scale = df, scale
        super().__init__(scale.shape, validate_args=False)

    def expand(self, batch_shape: tuple[int, ...], _instance: None = None) -> "CentredStudentT":
        """Return the same distribution with a larger batch shape."""
        return CentredStudentT(self.df, self.scale.expand(batch_shape))

    @property
    def mean(self) -> Tensor:
        """Mean, 0."""
        return torch.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        """Variance df λ² / (df − 2)."""
        return self.df / (self.df - 2) * self.scale**2

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Sample a normal variable over the root of an independent χ² variable divided by df, times λ."""
        shape = self.shape(torch.Size(sample_shape))
        half = self.scale.new_full((), self.df / 2).expand(shape)
        chi2_over_df = torch.distributions.Gamma(half, half, validate_args=False).sample()
        return self.scale * torch.randn_like(half) * chi2_over_df.rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each component, ``(*sample_shape, *batch_shape)``."""
        df = self.df
        constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
        return constant - self.scale.log() - (df + 1) / 2 * (value / self.scale).square().div(df).log1p()
