"""Guides: families of variational distributions over the latent sites of a model, built without data."""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
import torch.nn.functional as F
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoDelta, AutoGuide, AutoLaplaceApproximation
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import register_kl, transform_to

from probattn.attention.base import ProbabilisticAttention
from probattn.checks import check_local
from probattn.quiet import Quiet

Family = Callable[[dist.TorchDistribution], PyroModule]
"""A callable ``prior -> module``; ``module(prior)`` with the prior at its present scale returns the distribution."""


class Full(Quiet, PyroModule):
    """Gaussian with mean m and S = L Lᵀ over the last dimension of the site, one each per output (paper, eq. 17).

    Args:
        prior: the site's prior, which gives shape and initial scale: m is a draw from it, L a share of its scale.
        init_scale: that share.
        init_loc: factor on that draw; 0 starts at the mean.
    """

    def __init__(self, prior: dist.TorchDistribution, *, init_scale: float = 0.1, init_loc: float = 1.0) -> None:
        super().__init__()
        self.loc = nn.Parameter(init_loc * prior.sample())
        tril = torch.diag_embed(init_scale * _stddev(prior))
        self.raw_tril = nn.Parameter(transform_to(constraints.softplus_lower_cholesky).inv(tril))

    @property
    def scale_tril(self) -> Tensor:
        """L, lower-triangular with positive diagonal, ``(*event, event[-1])``."""
        return transform_to(constraints.softplus_lower_cholesky)(self.raw_tril)

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """q(u)."""
        return dist.MultivariateNormal(self.loc, scale_tril=self.scale_tril).to_event(self.loc.dim() - 1)


class Diagonal(Quiet, PyroModule):
    """Gaussian with independent components.

    Args:
        prior: the site's prior, which gives shape and initial scale.
        init_scale: initial standard deviation as a share of the prior's.
        init_loc: the initial mean is this times a draw from the prior.
    """

    def __init__(self, prior: dist.TorchDistribution, *, init_scale: float = 0.1, init_loc: float = 1.0) -> None:
        super().__init__()
        self.loc = nn.Parameter(init_loc * prior.sample())
        self.raw_scale = nn.Parameter(_softplus_inverse(init_scale * _stddev(prior)))

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """q(u)."""
        return dist.Normal(self.loc, F.softplus(self.raw_scale)).to_event(self.loc.dim())


class LowRank(Quiet, PyroModule):
    """Gaussian with covariance D + V Vᵀ over the last dimension of the site.

    Args:
        prior: the site's prior, which gives shape and initial scale.
        rank: columns of V, by default the rounded root of the last dimension.
        init_scale: initial standard deviation as a share of the prior's, half its variance from D and half from V.
        init_loc: the initial mean is this times a draw from the prior.
    """

    def __init__(
        self, prior: dist.TorchDistribution, *, rank: int | None = None, init_scale: float = 0.1, init_loc: float = 1.0
    ) -> None:
        super().__init__()
        size = prior.event_shape[-1]
        rank = rank or max(1, round(size**0.5))
        scale = init_scale * _stddev(prior) / 2**0.5
        self.loc = nn.Parameter(init_loc * prior.sample())
        self.raw_scale = nn.Parameter(_softplus_inverse(scale))
        self.factor = nn.Parameter(scale.unsqueeze(-1) * torch.randn(*scale.shape, rank).to(scale) / rank**0.5)

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """q(u)."""
        diagonal = F.softplus(self.raw_scale).square()
        return dist.LowRankMultivariateNormal(self.loc, self.factor, diagonal).to_event(self.loc.dim() - 1)


class Delta(Quiet, PyroModule):
    """A point mass on v = Λ⁻¹ u, so that the objective is the posterior density of v.

    A point mass on u itself would gain without bound from a learned Λ that runs to 0, since the function values
    depend on Λ⁻¹ u alone.

    Args:
        prior: the site's prior, which gives shape and scale.
        init_loc: the point is at first this times a draw from the prior.
    """

    def __init__(self, prior: dist.TorchDistribution, *, init_loc: float = 1.0) -> None:
        super().__init__()
        self.whitened = nn.Parameter(init_loc * prior.sample() / _stddev(prior))

    def forward(self, prior: dist.TorchDistribution) -> dist.TorchDistribution:
        """The point mass at Λ v, with the log density of the change of variables."""
        scale = prior.stddev
        return PointMass(scale * self.whitened, log_density=-scale.log().sum(), event_dim=scale.dim())


class PointMass(dist.Delta):
    """A ``Delta`` whose KL counts its log density, as its samples do under ``Trace_ELBO``."""


@register_kl(PointMass, dist.Distribution)
def _kl_point_mass(q: PointMass, p: dist.Distribution) -> Tensor:
    return q.log_density - p.log_prob(q.v)


FAMILIES: dict[str, Family] = {"full": Full, "diagonal": Diagonal, "lowrank": LowRank, "delta": Delta}


class Guide(Quiet, PyroModule):
    """Mean-field guide over sites: each has a module of its family, at the site's path inside the guide.

    Built by :func:`for_model`. It holds the model without registering it, to read the priors' present scale.
    """

    def __init__(self, model: nn.Module, families: Mapping[str, Family]) -> None:
        super().__init__()
        self._model = (model,)
        for site, prior in latent_sites(model):
            *containers, name = site.split(".")
            parent = self
            for container in containers:
                if container not in dict(parent.named_children()):
                    setattr(parent, container, PyroModule())
                parent = getattr(parent, container)
            setattr(parent, name, families[site](prior))

    def forward(self, *args, **kwargs) -> dict[str, Tensor]:
        """Draws every site; the arguments are the model's and are not used."""
        return {
            site: pyro.sample(site, self.get_submodule(site)(prior)) for site, prior in latent_sites(self._model[0])
        }


def for_model(
    model: nn.Module, family: str | Family = "full", *, overrides: Mapping[str, str | Family] | None = None
) -> Guide:
    """A guide for every latent site of a model's attention layers.

    Args:
        model: a module that holds layers of this library (or is one).
        family: ``"full"``, ``"diagonal"``, ``"lowrank"``, ``"delta"`` or a callable.
        overrides: families by pattern of site names (``"*.6.*"``); the last that matches counts.

    Raises:
        ValueError: an unknown family, one chosen where there is no site for it, or a pattern that matches no site.
    """
    overrides = overrides or {}
    sites = [site for site, _ in latent_sites(model)]
    if not sites and family != "full":
        raise ValueError(
            f"no site for a guide of family {family!r}: all that this model draws belongs to one example and brings "
            "its own posterior (or it draws nothing)"
        )
    for pattern in overrides:
        if not any(fnmatchcase(site, pattern) for site in sites):
            raise ValueError(f"override {pattern!r} matches no latent site; sites: {', '.join(sites) or 'none'}")
    chosen = {site: _family(family) for site in sites}
    for pattern, other in overrides.items():
        chosen.update({site: _family(other) for site in sites if fnmatchcase(site, pattern)})
    return Guide(model, chosen)


def latent_sites(model: nn.Module) -> Iterator[tuple[str, dist.TorchDistribution]]:
    """Names and present priors of a model's latent sites, in the order of its modules.

    Raises:
        ValueError: a layer whose sites would not be named by its path, since a container above it is a plain module.
    """
    for path, layer in model.named_modules():
        if not isinstance(layer, ProbabilisticAttention):
            continue
        if layer._pyro_name != path:
            raise ValueError(
                f"the sites of the layer at {path!r} would be called {layer._pyro_name!r}: a module above it is no "
                "PyroModule. Build containers as PyroModule[nn.Sequential](...), or call "
                "pyro.nn.module.to_pyro_module_(network) once; compile parts by module.compile(), which keeps names"
            )
        for name, prior in layer.sites().items():
            yield f"{path}.{name}" if path else name, prior


def is_lazy(guide: nn.Module) -> bool:
    """Whether a guide is an AutoGuide whose parameters do not exist yet."""
    return isinstance(guide, AutoGuide) and guide.prototype_trace is None


def materialise(guide: nn.Module, batch: tuple) -> None:
    """Creates the parameters of an AutoGuide by one run, before an optimiser, DDP or a checkpoint needs them.

    Guides of this library have theirs from construction; for them this does nothing.

    Args:
        guide: any guide.
        batch: the arguments of the model, ``(x, y)`` or ``(x, y, mask)``.
    """
    if is_lazy(guide):
        with torch.no_grad():
            guide(*batch)
        check_global(guide)


def global_part(model: Callable) -> Callable:
    """The model without the local sites that carry their own posterior: what an AutoGuide is built on.

    >>> guide = AutoNormal(guides.global_part(model))  # doctest: +SKIP
    """
    return poutine.block(model, hide_fn=lambda msg: "posterior" in msg["infer"])


def check(model: nn.Module, guide: nn.Module) -> None:
    """Refuses a guide of another model, Pyro's point masses on u where Λ is learned, and AutoGuides of local sites.

    Raises:
        ValueError: naming the site and what to use.
        RuntimeError: a module built before ``import probattn`` took effect (see :func:`~probattn.checks.check_local`).
    """
    check_local(model)
    check_local(guide)
    check_global(guide)
    if isinstance(guide, Guide) and guide._model[0] is not model:
        raise ValueError(
            "this guide was built for another model, whose priors it would follow: build it with "
            "guides.for_model(model), and copy the two together, copy.deepcopy((model, guide))"
        )
    if any(isinstance(part, (AutoDelta, AutoLaplaceApproximation)) for part in guide.modules()):
        for site, prior in latent_sites(model):
            if prior.stddev.requires_grad:
                raise ValueError(
                    f"this guide is a point mass on {site} itself, whose density grows without bound as the learned Λ "
                    'runs to 0: build the layer with learn_scale=False, or use guides.for_model(model, "delta")'
                )


def check_global(guide: nn.Module) -> None:
    """Refuses AutoGuides that also guide sites of one example, whose layers have their posteriors.

    Raises:
        ValueError: naming the site and what to build the guide on.
    """
    for part in guide.modules():
        if isinstance(part, AutoGuide) and part.prototype_trace is not None:
            for name, node in part.prototype_trace.nodes.items():
                if "posterior" in node.get("infer", {}):
                    raise ValueError(
                        f"this AutoGuide also guides {name}, one value per example, whose posterior its layer has: "
                        f"build it on the rest, {type(part).__name__}(guides.global_part(model))"
                    )


def _family(family: str | Family) -> Family:
    if callable(family):
        return family
    if family not in FAMILIES:
        raise ValueError(f"unknown guide family {family!r}; known: {', '.join(FAMILIES)}, or give a callable")
    return FAMILIES[family]


def _stddev(prior: dist.TorchDistribution) -> Tensor:
    return prior.stddev.detach()


def _softplus_inverse(x: Tensor) -> Tensor:
    return x + (-torch.expm1(-x)).log()
