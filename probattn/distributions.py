"""Gaussian distributions and point masses of a layer's sites, with their KL; the spread of any
prior."""

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from probattn.draws import Drawn
from probattn.functional import gaussian
from probattn.functional.gaussian import Covariance


class ColumnNormal(dist.TorchDistribution):
    """Gaussian over tokens whose d columns in each head are independent and share one covariance.

    Its event is ``(H, N, d)``, so that a site's batch shape is that of plates and draws. Padding
    has no log density.

    Args:
        loc: ``(..., H, N, d)``.
        covariance: of shape ``(..., H, N)``.
    """

    arg_constraints = {"loc": constraints.independent(constraints.real, 3)}
    support = constraints.independent(constraints.real, 3)
    has_rsample = True

    def __init__(self, loc: Tensor, covariance: Covariance) -> None:
        shape = torch.broadcast_shapes(loc.shape[:-1], covariance.shape)
        self.loc = loc.expand(*shape, loc.shape[-1])
        self.covariance = covariance
        super().__init__(shape[:-2], self.loc.shape[-3:], validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "ColumnNormal":
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

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Sample ``(*sample_shape, ..., H, N, d)``, differentiable in loc and covariance."""
        shape = torch.Size(sample_shape) + self.batch_shape + self.event_shape
        return self.loc + self.covariance.draw(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density in nats, ``(...)``."""
        return self.covariance.log_density(value - self.loc).sum(-1)


class MarginalsOfJoint(Drawn):
    """Marginals of a joint posterior, with the KL of the joint one, which SGPA's independent draws
    count.

    The log density is the prior's plus that KL, so that every ELBO counts it, also where a guide
    samples the site.

    Args:
        drawn, prior: the marginals of posterior and prior.
        kl: KL of the joint distributions ``(...)``, in nats.
    """

    def __init__(
        self,
        drawn: dist.TorchDistribution,
        prior: dist.TorchDistribution,
        kl: Tensor,
    ) -> None:
        super().__init__(drawn, drawn.batch_shape)
        self.prior = prior
        self.kl = kl

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the prior's log density plus the KL, in nats, ``(...)``."""
        return self.prior.log_prob(value) + self.kl


@register_kl(MarginalsOfJoint, dist.Distribution)
def _kl_marginals_of_joint(q: MarginalsOfJoint, p: dist.Distribution) -> Tensor:
    return q.kl.expand(q.batch_shape)


class FullNormal(dist.MultivariateNormal):
    """Multivariate normal distribution that draws many samples by one product with each factor.

    PyTorch's copies the factor for each sample, which for a site that is drawn once per example
    costs more than the layer's own products.
    """

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw samples ``(*sample_shape, *batch, n)``."""
        if not sample_shape:
            return super().rsample()
        shape = torch.Size(sample_shape) + self.batch_shape + self.event_shape
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        # L ε of all samples: (*batch, n, n) times (*batch, n, samples)
        columns = noise.flatten(0, len(sample_shape) - 1).movedim(0, -1)
        drawn = (self.scale_tril @ columns).movedim(-1, 0).contiguous()
        return self.loc + drawn.reshape(shape)


class DiagonalNormal(dist.MultivariateNormal):
    """Multivariate normal distribution with a diagonal covariance, for a KL without triangular
    solves.

    Its parameters are location and scale, as reparametrisations of a location-scale family expect.

    Args:
        loc: mean ``(..., n)``.
        scale: standard deviations ``(..., n)``, positive.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "scale": constraints.independent(constraints.positive, 1),
    }

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        loc, self.scale = torch.broadcast_tensors(loc, scale)
        super().__init__(loc, scale_tril=torch.diag_embed(self.scale), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "DiagonalNormal":
        """Return the same distribution with a larger batch shape."""
        shape = torch.Size(batch_shape) + self.event_shape
        return DiagonalNormal(self.loc.expand(shape), self.scale.expand(shape), validate_args=False)

    @property
    def stddev(self) -> Tensor:
        """Standard deviations, the scale."""
        return self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density in nats, ``(...)``, without triangular solves."""
        return dist.Normal(self.loc, self.scale).to_event(1).log_prob(value)


@register_kl(torch.distributions.MultivariateNormal, DiagonalNormal)
def _kl_diagonal_normal(q: torch.distributions.MultivariateNormal, p: DiagonalNormal) -> Tensor:
    """Return Σ log(σ_i / L_ii) + ½ (‖L_i. / σ_i‖² + (shift_i / σ_i)² − 1)."""
    stddev = p.stddev
    shift = q.loc - p.loc
    # Rows of L and the shift, divided by σ_i
    whitened = torch.cat([q.scale_tril, shift.unsqueeze(-1)], dim=-1) / stddev.unsqueeze(-1)
    log_ratio = stddev.log() - q.scale_tril.diagonal(dim1=-2, dim2=-1).log()
    return (log_ratio + 0.5 * whitened.square().sum(-1) - 0.5).sum(-1)


@register_kl(ColumnNormal, ColumnNormal)
def _kl_column_normal(q: ColumnNormal, p: ColumnNormal) -> Tensor:
    if q is p:
        return q.loc.new_zeros(q.batch_shape)
    return gaussian.kl_divergence(q.loc - p.loc, q.covariance, p.covariance).sum(-1)


class PointMass(dist.Delta):
    """``Delta`` whose KL includes its log density, as its samples do under ``Trace_ELBO``."""


@register_kl(PointMass, dist.Distribution)
def _kl_point_mass(q: PointMass, p: dist.Distribution) -> Tensor:
    return q.log_density - p.log_prob(q.v)


def stddev_of(prior: dist.TorchDistribution) -> Tensor:
    """Return the prior's standard deviation, or a robust one of its draws if that does not
    exist."""
    return prior.stddev if has_stddev(prior) else robust_moments(prior.sample((1001,)))[1]


def has_stddev(prior: dist.TorchDistribution) -> bool:
    """Return True if the standard deviation exists and is finite."""
    try:
        stddev = prior.stddev
    except NotImplementedError:
        return False
    return stddev.is_meta or bool(stddev.isfinite().all())


def robust_moments(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return median and median absolute deviation over the first dimension, the latter scaled to a
    normal's stddev."""
    median = samples.median(0).values
    return median, 1.4826 * (samples - median).abs().median(0).values
