"""Guide families: variational distributions over one latent site, built from its prior."""

from collections.abc import Callable
from typing import cast

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor, nn
from torch.distributions import biject_to, transform_to
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import SoftplusTransform

from probattn.distributions import (
    FullNormal,
    PointMass,
    has_stddev,
    robust_moments,
    stddev_of,
)
from probattn.functional.dtypes import at_least_float32
from probattn.functional.natural_gradient import natural_step

Family = Callable[[TorchDistribution], nn.Module]
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

    def __init__(self, prior: TorchDistribution) -> None:
        super().__init__()
        self.scale = None if has_stddev(prior) else nn.Buffer(stddev_of(prior).detach())

    def prior_scale(self, prior: TorchDistribution) -> Tensor:
        """Return Λ, ``(..., *event)``."""
        # The present Λ: only the KSVD term moves it, and a hierarchical prior's random scale leaves
        # q(Λ⁻¹ u) as it is.
        return at_least_float32(prior.stddev if self.scale is None else self.scale)

    def _draw(self, prior: TorchDistribution) -> Tensor:
        """Return v of a draw from the prior."""
        return prior.sample() / self.prior_scale(prior).detach()


class Gaussian(_RelativeToPrior):
    """Base of Gaussian families with mean Λ m, Λ the prior's present standard deviation.

    Args:
        prior: the site's prior, for shape and scale.
        init_scale: initial standard deviation relative to the prior's.
        init_loc: the initial mean is this times a draw from the prior.

    Attributes:
        loc: m, ``(*event)``.
    """

    def __init__(
        self,
        prior: TorchDistribution,
        *,
        init_scale: float = 0.1,
        init_loc: float = 1.0,
    ) -> None:
        super().__init__(prior)
        self.loc = nn.Parameter(init_loc * self._draw(prior))
        self._add_scale(torch.full_like(self.loc.detach(), init_scale))

    def _add_scale(self, scale: Tensor) -> None:
        """Add the parameters of the spread, which start at these standard deviations
        ``(*event)``."""
        raise NotImplementedError

    def mean(self, prior: TorchDistribution) -> Tensor:
        """Return Λ m."""
        return self.prior_scale(prior) * at_least_float32(self.loc)


class Natural(Gaussian):
    """Base of Gaussian families that take natural-gradient steps, in independent blocks N(m, L Lᵀ).

    A family has two parameters: m, and L before the softplus of its diagonal.
    """

    def blocks(self) -> int:
        """Return the number of independent Gaussians."""
        loc, raw = self.parameters()
        return loc.numel() ** 2 // raw.numel()

    @torch.no_grad()
    def natural_step(self, length: float | Tensor, scale: float = 1.0) -> Tensor:
        """Take the covariance's natural-gradient step, and return the mean's direction (see
        :func:`~probattn.functional.natural_gradient.natural_step`).

        The loss is ``scale`` times the one whose gradients the parameters have.
        """
        loc, raw_tril = self.parameters()
        size = raw_tril.numel() // loc.numel()
        # (blocks, s, s), (blocks, s) and (blocks, s, s)
        raw = at_least_float32(raw_tril).view(-1, size, size)
        grad_loc = at_least_float32(cast(Tensor, loc.grad)).view(-1, size)
        grad_raw = at_least_float32(cast(Tensor, raw_tril.grad)).view(-1, size, size)
        # ∂loss/∂L, where L is raw with the softplus of its diagonal
        slope = raw.diagonal(dim1=-2, dim2=-1).sigmoid()
        grad_diagonal = grad_raw.diagonal(dim1=-2, dim2=-1) / slope
        grad_tril = grad_raw.tril(-1) + grad_diagonal.diag_embed()
        direction, tril = natural_step(TRIL(raw), scale * grad_loc, scale * grad_tril, length)
        raw_tril.copy_(TRIL.inv(tril).view_as(raw_tril))
        return direction.view_as(loc)


class Full(Natural):
    """Gaussian N(Λ m, Λ L Lᵀ Λ) over the last dimension of the site; arguments as for
    :class:`Gaussian`.

    The covariance S of the KEP-SVGP paper (eq. 17) is Λ L Lᵀ Λ.
    """

    def _add_scale(self, scale: Tensor) -> None:
        self.raw_tril = nn.Parameter(TRIL.inv(scale.diag_embed()))

    @property
    def scale_tril(self) -> Tensor:
        """L, lower-triangular with positive diagonal, ``(*event, event[-1])``."""
        return TRIL(at_least_float32(self.raw_tril))

    def forward(self, prior: TorchDistribution) -> TorchDistribution:
        """Return q(u)."""
        tril = self.prior_scale(prior).unsqueeze(-1) * self.scale_tril
        q = FullNormal(self.mean(prior), scale_tril=tril)
        return q.to_event(self.loc.dim() - 1)


class Diagonal(Natural):
    """Gaussian with independent components N(λ m, λ² σ²); arguments as for :class:`Gaussian`."""

    def _add_scale(self, scale: Tensor) -> None:
        self.raw_scale = nn.Parameter(_softplus_inverse(scale))

    def forward(self, prior: TorchDistribution) -> TorchDistribution:
        """Return q(u)."""
        scale = self.prior_scale(prior) * F.softplus(at_least_float32(self.raw_scale))
        return dist.Normal(self.mean(prior), scale).to_event(self.loc.dim())


class LowRank(Gaussian):
    """Gaussian N(Λ m, Λ (D + V Vᵀ) Λ) over the last dimension.

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
        prior: TorchDistribution,
        *,
        rank: int | None = None,
        **initial: float,
    ) -> None:
        self.rank = rank or max(1, round(prior.event_shape[-1] ** 0.5))
        super().__init__(prior, **initial)

    def _add_scale(self, scale: Tensor) -> None:
        scale = scale / 2**0.5
        self.raw_scale = nn.Parameter(_softplus_inverse(scale))
        noise = torch.randn(*scale.shape, self.rank).to(scale)
        self.factor = nn.Parameter(scale.unsqueeze(-1) * noise / self.rank**0.5)

    def forward(self, prior: TorchDistribution) -> TorchDistribution:
        """Return q(u)."""
        scale = self.prior_scale(prior)
        factor = scale.unsqueeze(-1) * at_least_float32(self.factor)
        variance = (scale * F.softplus(at_least_float32(self.raw_scale))).square()
        q = dist.LowRankMultivariateNormal(self.mean(prior), factor, variance)
        return q.to_event(self.loc.dim() - 1)


class Delta(_RelativeToPrior):
    """Point mass on v = Λ⁻¹ u, for which the objective is the posterior density of v.

    The objective of a point mass on u itself is unbounded as a learned Λ goes to 0, since the
    function values depend on Λ⁻¹ u alone.

    Args:
        prior: the site's prior, for shape and scale.
        init_loc: the initial point is this times a draw from the prior.
    """

    def __init__(self, prior: TorchDistribution, *, init_loc: float = 1.0) -> None:
        super().__init__(prior)
        self.whitened = nn.Parameter(init_loc * self._draw(prior))

    def forward(self, prior: TorchDistribution) -> TorchDistribution:
        """Return the point mass at Λ v, with the log density of the change of variables."""
        scale = self.prior_scale(prior)
        event_dim = self.whitened.dim()
        log_density = -scale.log().flatten(-event_dim).sum(-1)
        return PointMass(scale * self.whitened, log_density=log_density, event_dim=event_dim)


class Constrained(nn.Module):
    """Family on the unconstrained space of a site, mapped to the site's support by ``biject_to``.

    Args:
        prior: the site's prior; median and spread of its unconstrained draws are the initial
            values.
        family: one of :data:`FAMILIES`.
    """

    def __init__(self, prior: TorchDistribution, family: Family) -> None:
        super().__init__()
        unconstrained = biject_to(prior.support).inv(prior.sample((1001,)))
        self.loc, self.scale = map(nn.Buffer, robust_moments(unconstrained))
        self.unconstrained = family(self._reference())

    def forward(self, prior: TorchDistribution) -> TorchDistribution:
        """Return q at the site."""
        q = self.unconstrained(self._reference())
        transform = biject_to(prior.support)
        if not isinstance(q, PointMass):
            return dist.TransformedDistribution(q, [transform])
        value = transform(q.v)
        jacobian = transform.log_abs_det_jacobian(q.v, value)
        return PointMass(value, log_density=q.log_density - jacobian, event_dim=self.loc.dim())

    def _reference(self) -> TorchDistribution:
        loc, scale = map(at_least_float32, (self.loc, self.scale))
        return dist.Normal(loc, scale).to_event(loc.dim())


FAMILIES: dict[str, Family] = {
    "full": Full,
    "diagonal": Diagonal,
    "lowrank": LowRank,
    "delta": Delta,
}


def resolve(family: str | Family) -> Family:
    """Return the family of that name, or the callable itself."""
    if not isinstance(family, str):
        return family
    if family not in FAMILIES:
        raise ValueError(
            f"unknown guide family {family!r}; known: {', '.join(FAMILIES)}, or give a callable"
        )
    return FAMILIES[family]


def on_support(family: Family, prior: TorchDistribution) -> nn.Module:
    """Return a family's module for a site; families of this library reach supports other than ℝ by
    a bijection."""
    # func: the family of a functools.partial
    if getattr(family, "func", family) not in FAMILIES.values():
        return family(prior)
    support = cast(Constraint, prior.support)
    if support.is_discrete:
        raise ValueError(
            "no family of this library covers a discrete site: give overrides, or a guide by rest="
        )
    if not prior.event_shape and family is not Delta:
        family = Diagonal  # the others need a last dimension
    return family(prior) if is_real(support) else Constrained(prior, family)


def is_real(support: Constraint) -> bool:
    """Return True where a support is all of ℝ, elementwise."""
    while isinstance(support, (constraints.independent, constraints.MixtureSameFamilyConstraint)):
        support = support.base_constraint
    return isinstance(support, type(constraints.real))
