"""Guide families: variational distributions over one latent site, built from its prior."""

from collections.abc import Callable

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.distributions import constraints
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import biject_to, register_kl, transform_to

from probattn.coverage import is_real
from probattn.functional.dtypes import at_least_float32
from probattn.param_effects import SkipParamEffects

Family = Callable[[dist.TorchDistribution], PyroModule]
"""A callable ``prior -> module``; ``module(prior)`` with the prior at its present scale returns the distribution."""


class Full(SkipParamEffects, PyroModule):
    """Gaussian with mean m and covariance S = L Lᵀ over the last dimension of the site (KEP-SVGP paper, eq. 17).

    Args:
        prior: the site's prior, for shape and initial scale.
        init_scale: initial standard deviation relative to the prior's.
        init_loc: the initial mean is this times a draw from the prior.
    """

    def __init__(self, prior: dist.TorchDistribution, *, init_scale: float = 0.1, init_loc: float = 1.0) -> None:
        super().__init__()
        self.loc = nn.Parameter(init_loc * prior.sample())
        tril = torch.diag_embed(init_scale * stddev_of(prior).detach())
        self.raw_tril = nn.Parameter(transform_to(constraints.softplus_lower_cholesky).inv(tril))

    @property
    def scale_tril(self) -> Tensor:
        """L, lower-triangular with positive diagonal, ``(*event, event[-1])``."""
        return transform_to(constraints.softplus_lower_cholesky)(at_least_float32(self.raw_tril))

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return q(u)."""
        loc = at_least_float32(self.loc)
        return dist.MultivariateNormal(loc, scale_tril=self.scale_tril).to_event(loc.dim() - 1)


class Diagonal(SkipParamEffects, PyroModule):
    """Gaussian with independent components.

    Args:
        prior: the site's prior, for shape and initial scale.
        init_scale: initial standard deviation relative to the prior's.
        init_loc: the initial mean is this times a draw from the prior.
    """

    def __init__(self, prior: dist.TorchDistribution, *, init_scale: float = 0.1, init_loc: float = 1.0) -> None:
        super().__init__()
        self.loc = nn.Parameter(init_loc * prior.sample())
        self.raw_scale = nn.Parameter(_softplus_inverse(init_scale * stddev_of(prior).detach()))

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return q(u)."""
        loc, raw_scale = at_least_float32(self.loc), at_least_float32(self.raw_scale)
        return dist.Normal(loc, F.softplus(raw_scale)).to_event(loc.dim())


class LowRank(SkipParamEffects, PyroModule):
    """Gaussian with covariance D + V Vᵀ over the last dimension of the site.

    Args:
        prior: the site's prior, for shape and initial scale.
        rank: columns of V, by default the rounded square root of the last dimension.
        init_scale: initial standard deviation relative to the prior's, half its variance from D and half from V.
        init_loc: the initial mean is this times a draw from the prior.
    """

    def __init__(
        self, prior: dist.TorchDistribution, *, rank: int | None = None, init_scale: float = 0.1, init_loc: float = 1.0
    ) -> None:
        super().__init__()
        size = prior.event_shape[-1]
        rank = rank or max(1, round(size**0.5))
        scale = init_scale * stddev_of(prior).detach() / 2**0.5
        self.loc = nn.Parameter(init_loc * prior.sample())
        self.raw_scale = nn.Parameter(_softplus_inverse(scale))
        self.factor = nn.Parameter(scale.unsqueeze(-1) * torch.randn(*scale.shape, rank).to(scale) / rank**0.5)

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return q(u)."""
        loc, factor, raw_scale = map(at_least_float32, (self.loc, self.factor, self.raw_scale))
        diagonal = F.softplus(raw_scale).square()
        return dist.LowRankMultivariateNormal(loc, factor, diagonal).to_event(loc.dim() - 1)


class Delta(SkipParamEffects, PyroModule):
    """Point mass on v = Λ⁻¹ u, for which the objective is the posterior density of v.

    The objective of a point mass on u itself is unbounded as a learned Λ goes to 0, since the function values depend
    on Λ⁻¹ u alone.

    Args:
        prior: the site's prior, for shape and scale.
        init_loc: the initial point is this times a draw from the prior.
    """

    def __init__(self, prior: dist.TorchDistribution, *, init_loc: float = 1.0) -> None:
        super().__init__()
        scale = stddev_of(prior).detach()
        self.register_buffer("scale", None if _has_stddev(prior) else scale)
        self.whitened = nn.Parameter(init_loc * prior.sample() / scale)

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return the point mass at Λ v, with the log density of the change of variables."""
        scale, dims = at_least_float32(prior.stddev if self.scale is None else self.scale), self.whitened.dim()
        log_density = -scale.log().flatten(-dims).sum(-1)
        return PointMass(scale * self.whitened, log_density=log_density, event_dim=dims)


class PointMass(dist.Delta):
    """``Delta`` whose KL includes its log density, as its samples do under ``Trace_ELBO``."""


@register_kl(PointMass, dist.Distribution)
def _kl_point_mass(q: PointMass, p: dist.Distribution) -> Tensor:
    return q.log_density - p.log_prob(q.v)


class Constrained(SkipParamEffects, PyroModule):
    """Family on the unconstrained space of a site, mapped to the site's support by ``biject_to``.

    Args:
        prior: the site's prior; median and spread of its unconstrained draws are the initial values.
        family: one of :data:`FAMILIES`.
    """

    def __init__(self, prior: dist.TorchDistribution, family: Family) -> None:
        super().__init__()
        loc, scale = _robust_moments(biject_to(prior.support).inv(prior.sample((1001,))))
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)
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
        return dist.Normal(at_least_float32(self.loc), at_least_float32(self.scale)).to_event(self.loc.dim())


FAMILIES: dict[str, Family] = {"full": Full, "diagonal": Diagonal, "lowrank": LowRank, "delta": Delta}


def resolve(family: str | Family) -> Family:
    """Return the family of that name, or the callable itself."""
    if callable(family):
        return family
    if family not in FAMILIES:
        raise ValueError(f"unknown guide family {family!r}; known: {', '.join(FAMILIES)}, or give a callable")
    return FAMILIES[family]


def on_support(family: Family, prior: dist.TorchDistribution) -> PyroModule:
    """Return a family's module for a site; named families reach supports other than ℝ by a bijection."""
    own = family in FAMILIES.values()
    if own and prior.support.is_discrete:
        raise ValueError("no family of this library covers a discrete site: give overrides, or a guide by rest=")
    return Constrained(prior, family) if own and not is_real(prior.support) else family(prior)


def stddev_of(prior: dist.TorchDistribution) -> Tensor:
    """Return the prior's standard deviation, or a robust one of its draws if that does not exist."""
    return prior.stddev if _has_stddev(prior) else _robust_moments(prior.sample((1001,)))[1]


def _has_stddev(prior: dist.TorchDistribution) -> bool:
    try:
        stddev = prior.stddev
    except NotImplementedError:
        return False
    return stddev.is_meta or bool(stddev.isfinite().all())


def _robust_moments(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return median and median absolute deviation over the first dimension, the latter scaled to a normal's stddev."""
    median = samples.median(0).values
    return median, 1.4826 * (samples - median).abs().median(0).values


def _softplus_inverse(x: Tensor) -> Tensor:
    return x + (-torch.expm1(-x)).log()
