"""Guide families: variational distributions over one latent site, built from its prior."""

from collections.abc import Callable
from typing import cast

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.distributions import constraints
from torch import Tensor, nn
from torch.distributions import biject_to, register_kl, transform_to
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import SoftplusTransform

from probattn.functional.dtypes import at_least_float32
from probattn.functional.natural_gradient import natural_step

Family = Callable[[dist.TorchDistribution], nn.Module]
"""A callable ``prior -> module``; ``module(prior)`` with the prior at its present scale returns the
distribution."""

_softplus_inverse = SoftplusTransform().inv
TRIL = transform_to(constraints.softplus_lower_cholesky)


class _RelativeToPrior(nn.Module):
    """Base of families with u = Λ v, where Λ is the prior's present standard deviation and q(v) has
    the parameters.

    For a scale family of priors p(u) = p(v) / |Λ| neither the KL of q(u) nor the law of Λ⁻¹ u
    depends on Λ, as for whitened inducing variables (Hensman et al., 2015).

    Attributes:
        scale: a robust scale for a prior without a finite standard deviation, else None.
    """

    def __init__(self, prior: dist.TorchDistribution) -> None:
        super().__init__()
        self.scale = None if has_stddev(prior) else nn.Buffer(stddev_of(prior).detach())

    def prior_scale(self, prior: dist.TorchDistribution) -> Tensor:
        """Return Λ, ``(..., *event)``."""
        # The present Λ: only the KSVD term moves it, and a hierarchical prior's random scale leaves
        # q(Λ⁻¹ u) as it is.
        return at_least_float32(prior.stddev if self.scale is None else self.scale)

    def _draw(self, prior: dist.TorchDistribution) -> Tensor:
        """Return v of a draw from the prior."""
        return prior.sample() / self.prior_scale(prior).detach()


class Full(_RelativeToPrior):
    """Gaussian N(Λ m, Λ L Lᵀ Λ) over the last dimension of the site, Λ the prior's present standard
    deviation.

    The covariance S of the KEP-SVGP paper (eq. 17) is Λ L Lᵀ Λ.

    Args:
        prior: the site's prior, for shape and scale.
        init_scale: initial standard deviation relative to the prior's.
        init_loc: the initial mean is this times a draw from the prior.

    Attributes:
        loc: m, ``(*event)``.
    """

    def __init__(
        self, prior: dist.TorchDistribution, *, init_scale: float = 0.1, init_loc: float = 1.0
    ) -> None:
        super().__init__(prior)
        self.loc = nn.Parameter(init_loc * self._draw(prior))
        tril = torch.diag_embed(torch.full_like(self.loc.detach(), init_scale))
        self.raw_tril = nn.Parameter(TRIL.inv(tril))

    @property
    def scale_tril(self) -> Tensor:
        """L, lower-triangular with positive diagonal, ``(*event, event[-1])``."""
        return TRIL(at_least_float32(self.raw_tril))

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return q(u)."""
        scale, loc = self.prior_scale(prior), at_least_float32(self.loc)
        tril = scale.unsqueeze(-1) * self.scale_tril
        return dist.MultivariateNormal(scale * loc, scale_tril=tril).to_event(loc.dim() - 1)

    def blocks(self) -> int:
        """Return the number of independent Gaussians."""
        return self.loc[..., 0].numel()

    @torch.no_grad()
    def natural_step(self, length: float | Tensor, scale: float = 1.0) -> Tensor:
        """Take the covariance's natural-gradient step, and return the mean's direction (see
        :func:`natural_step`).

        The loss is ``scale`` times the one whose gradients the parameters have.
        """
        raw, grad_loc, grad_tril = (
            at_least_float32(self.raw_tril),
            _gradient(self.loc),
            _gradient(self.raw_tril),
        )
        slope = raw.diagonal(dim1=-2, dim2=-1).sigmoid()
        grad_tril = grad_tril.tril(-1) + (grad_tril.diagonal(dim1=-2, dim2=-1) / slope).diag_embed()
        direction, tril = natural_step(TRIL(raw), scale * grad_loc, scale * grad_tril, length)
        self.raw_tril.copy_(TRIL.inv(tril))
        return direction


class Diagonal(_RelativeToPrior):
    """Gaussian with independent components N(λ m, λ² σ²), λ the prior's present standard deviation.

    Args:
        prior: the site's prior, for shape and scale.
        init_scale: initial standard deviation relative to the prior's.
        init_loc: the initial mean is this times a draw from the prior.

    Attributes:
        loc: m, ``(*event)``.
    """

    def __init__(
        self, prior: dist.TorchDistribution, *, init_scale: float = 0.1, init_loc: float = 1.0
    ) -> None:
        super().__init__(prior)
        self.loc = nn.Parameter(init_loc * self._draw(prior))
        self.raw_scale = nn.Parameter(
            _softplus_inverse(torch.full_like(self.loc.detach(), init_scale))
        )

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return q(u)."""
        loc, raw_scale, scale = (
            at_least_float32(self.loc),
            at_least_float32(self.raw_scale),
            self.prior_scale(prior),
        )
        return dist.Normal(scale * loc, scale * F.softplus(raw_scale)).to_event(loc.dim())

    def blocks(self) -> int:
        """Return the number of independent Gaussians."""
        return self.loc.numel()

    @torch.no_grad()
    def natural_step(self, length: float | Tensor, scale: float = 1.0) -> Tensor:
        """Take the covariance's natural-gradient step, and return the mean's direction (see
        :func:`natural_step`).

        The loss is ``scale`` times the one whose gradients the parameters have.
        """
        values = (at_least_float32(self.raw_scale), _gradient(self.loc), _gradient(self.raw_scale))
        raw, grad_loc, grad_raw = (value.unsqueeze(-1) for value in values)
        stddev, grad_stddev = (
            F.softplus(raw).unsqueeze(-1),
            (grad_raw / raw.sigmoid()).unsqueeze(-1),
        )
        direction, stddev = natural_step(stddev, scale * grad_loc, scale * grad_stddev, length)
        self.raw_scale.copy_(_softplus_inverse(stddev[..., 0, 0]))
        return direction.squeeze(-1)


class LowRank(_RelativeToPrior):
    """Gaussian N(Λ m, Λ (D + V Vᵀ) Λ) over the last dimension, Λ the prior's present standard
    deviation.

    Args:
        prior: the site's prior, for shape and scale.
        rank: columns of V, by default the rounded square root of the last dimension.
        init_scale: initial standard deviation relative to the prior's, half its variance from D and
            half from V.
        init_loc: the initial mean is this times a draw from the prior.

    Attributes:
        loc: m, ``(*event)``.
        factor: V, ``(*event, rank)``.
    """

    def __init__(
        self,
        prior: dist.TorchDistribution,
        *,
        rank: int | None = None,
        init_scale: float = 0.1,
        init_loc: float = 1.0,
    ) -> None:
        super().__init__(prior)
        rank = rank or max(1, round(prior.event_shape[-1] ** 0.5))
        self.loc = nn.Parameter(init_loc * self._draw(prior))
        scale = torch.full_like(self.loc.detach(), init_scale / 2**0.5)
        self.raw_scale = nn.Parameter(_softplus_inverse(scale))
        self.factor = nn.Parameter(
            scale.unsqueeze(-1) * torch.randn(*scale.shape, rank).to(scale) / rank**0.5
        )

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return q(u)."""
        loc, factor, raw_scale = map(at_least_float32, (self.loc, self.factor, self.raw_scale))
        scale = self.prior_scale(prior)
        diagonal = (scale * F.softplus(raw_scale)).square()
        q = dist.LowRankMultivariateNormal(scale * loc, scale.unsqueeze(-1) * factor, diagonal)
        return q.to_event(loc.dim() - 1)


class Delta(_RelativeToPrior):
    """Point mass on v = Λ⁻¹ u, for which the objective is the posterior density of v.

    The objective of a point mass on u itself is unbounded as a learned Λ goes to 0, since the
    function values depend on Λ⁻¹ u alone.

    Args:
        prior: the site's prior, for shape and scale.
        init_loc: the initial point is this times a draw from the prior.
    """

    def __init__(self, prior: dist.TorchDistribution, *, init_loc: float = 1.0) -> None:
        super().__init__(prior)
        self.whitened = nn.Parameter(init_loc * self._draw(prior))

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return the point mass at Λ v, with the log density of the change of variables."""
        scale, dims = self.prior_scale(prior), self.whitened.dim()
        log_density = -scale.log().flatten(-dims).sum(-1)
        return PointMass(scale * self.whitened, log_density=log_density, event_dim=dims)


class PointMass(dist.Delta):
    """``Delta`` whose KL includes its log density, as its samples do under ``Trace_ELBO``."""


@register_kl(PointMass, dist.Distribution)
def _kl_point_mass(q: PointMass, p: dist.Distribution) -> Tensor:
    return q.log_density - p.log_prob(q.v)


class Constrained(nn.Module):
    """Family on the unconstrained space of a site, mapped to the site's support by ``biject_to``.

    Args:
        prior: the site's prior; median and spread of its unconstrained draws are the initial
            values.
        family: one of :data:`FAMILIES`.
    """

    def __init__(self, prior: dist.TorchDistribution, family: Family) -> None:
        super().__init__()
        loc, scale = robust_moments(biject_to(prior.support).inv(prior.sample((1001,))))
        self.loc, self.scale = nn.Buffer(loc), nn.Buffer(scale)
        self.unconstrained = family(self._reference())

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return q at the site."""
        q, transform = self.unconstrained(self._reference()), biject_to(prior.support)
        if not isinstance(q, PointMass):
            return dist.TransformedDistribution(q, [transform])
        value = transform(q.v)
        jacobian = transform.log_abs_det_jacobian(q.v, value)
        return PointMass(value, log_density=q.log_density - jacobian, event_dim=self.loc.dim())

    def _reference(self) -> dist.TorchDistribution:
        return dist.Normal(at_least_float32(self.loc), at_least_float32(self.scale)).to_event(
            self.loc.dim()
        )


def _gradient(parameter: nn.Parameter) -> Tensor:
    return at_least_float32(cast(Tensor, parameter.grad))


FAMILIES: dict[str, Family] = {
    "full": Full,
    "diagonal": Diagonal,
    "lowrank": LowRank,
    "delta": Delta,
}


def resolve(family: str | Family) -> Family:
    """Return the family of that name, or the callable itself."""
    if callable(family):
        return family
    if family not in FAMILIES:
        raise ValueError(
            f"unknown guide family {family!r}; known: {', '.join(FAMILIES)}, or give a callable"
        )
    return FAMILIES[family]


def on_support(family: Family, prior: dist.TorchDistribution) -> nn.Module:
    """Return a family's module for a site; families of this library reach supports other than ℝ by
    a bijection."""
    is_ours = (
        getattr(family, "func", family) in FAMILIES.values()
    )  # func: the family of a functools.partial
    support = cast(Constraint, prior.support)
    if is_ours and support.is_discrete:
        raise ValueError(
            "no family of this library covers a discrete site: give overrides, or a guide by rest="
        )
    if is_ours and not prior.event_shape:
        family = Delta if family is Delta else Diagonal  # the others need a last dimension
    return Constrained(prior, family) if is_ours and not is_real(support) else family(prior)


def is_real(support: Constraint) -> bool:
    """Return True where a support is all of ℝ, elementwise."""
    while isinstance(support, (constraints.independent, constraints.MixtureSameFamilyConstraint)):
        support = support.base_constraint
    return isinstance(support, type(constraints.real))


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
