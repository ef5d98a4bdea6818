"""Priors over inducing variables: callables ``scale -> Distribution`` whose event has the shape of
``scale``.

A layer scales its prior by its own Λ. Every prior here is centred, with scale λ > 0 elementwise.
Hierarchical priors sample hyperparameters at sites of their own.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from probattn.distributions import DiagonalNormal
from probattn.functional.dtypes import at_least_float32
from probattn.sites import SiteModule

Prior = Callable[[Tensor], TorchDistribution]
"""A function or module; a module becomes part of its layer, with sites and parameters at paths
below it."""


def normal(scale: Tensor) -> TorchDistribution:
    """Return N(0, Λ²) over the last dimension of ``scale`` (KEP-SVGP paper, eq. 16).

    It is a multivariate normal, not ``Normal.to_event``, so that its KL with every Gaussian guide
    is analytic under ``TraceMeanField_ELBO``.
    """
    prior = DiagonalNormal(torch.zeros_like(scale), scale)
    return prior.to_event(scale.dim() - 1)


def laplace(scale: Tensor) -> TorchDistribution:
    """Return Laplace(0, λ), with heavier tails and a sharper peak than the normal; few of its KLs
    are analytic."""
    return dist.Laplace(torch.zeros_like(scale), scale).to_event(scale.dim())


@dataclass(frozen=True)
class student_t:  # noqa: N801 - called like the functions above
    """Student-t with ``df`` degrees of freedom and scale λ; its KL is sampled.

    Raises:
        ValueError: df ≤ 2, since guides are initialised from the prior's standard deviation.
    """

    df: float = 4.0

    def __post_init__(self) -> None:
        if not self.df > 2:
            raise ValueError(f"student_t needs df > 2 for a finite variance, got {self.df}")

    def __call__(self, scale: Tensor) -> TorchDistribution:
        """Return the prior at a scale."""
        return dist.StudentT(self.df, torch.zeros_like(scale), scale).to_event(scale.dim())


class Hierarchical(SiteModule):
    """Base of priors that sample hyperparameters in :meth:`forward`, by :meth:`sample`.

    Each layer gets a copy; sites are called ``LAYER.prior.NAME``, and
    :func:`probattn.guides.for_model` covers them.
    """

    _name = "prior"  # of a layer without a name, whose attribute it is

    def sample(self, name: str, prior: TorchDistribution) -> Tensor:
        """Sample a hyperparameter; its batch shape is right-aligned with plates, as the prior of
        the layer is."""
        return self.sample_in_plates(name, prior)

    def forward(self, scale: Tensor, event_dim: int | None = None) -> TorchDistribution:
        """Return the prior given hyperparameters sampled here.

        Args:
            scale: λ > 0, ``(..., *event)``.
            event_dim: number of event dimensions, all by default; dimensions left of them are draws
                of a random Λ.
        """
        raise NotImplementedError


class Horseshoe(Hierarchical):
    """Horseshoe prior (Carvalho, Polson & Scott, 2010): u ~ N(0, (λ τ ζ)²), with few large entries
    and many near 0.

    Sites: ``tau`` ~ HalfCauchy(``scale``), one for each head; ``zeta`` ~ HalfCauchy(1), one for
    each scalar.

    Args:
        scale: scale of τ, the fraction of entries that are expected to be large.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, scale: Tensor, event_dim: int | None = None) -> TorchDistribution:
        """Return the normal prior given τ and ζ sampled here."""
        event_dim = scale.dim() if event_dim is None else event_dim
        event = scale.shape[-event_dim:]
        heads = _constant((event[0], *(1,) * (event_dim - 1)), self.scale, like=scale)
        tau = self.sample("tau", dist.HalfCauchy(heads).to_event(event_dim))
        each = _constant(event, 1.0, like=scale)
        zeta = self.sample("zeta", dist.HalfCauchy(each).to_event(event_dim))
        return at(normal, scale * tau * zeta, event_dim)


class ARD(Hierarchical):
    """Automatic relevance determination (MacKay, 1994; Neal, 1996): u ~ N(0, λ² / ρ), ρ ~
    Gamma(shape, rate).

    Site: ``precision`` ρ, one for each head and inducing index (the last dimension), shared by all
    outputs.

    Args:
        shape, rate: parameters of the Gamma distribution of ρ.
    """

    def __init__(self, shape: float = 2.0, rate: float = 2.0) -> None:
        super().__init__()
        self.shape = shape
        self.rate = rate

    def forward(self, scale: Tensor, event_dim: int | None = None) -> TorchDistribution:
        """Return the normal prior given ρ sampled here."""
        event_dim = scale.dim() if event_dim is None else event_dim
        event = scale.shape[-event_dim:]
        shared = event if event_dim < 3 else (event[0], *(1,) * (event_dim - 2), event[-1])
        shape = _constant(shared, self.shape, like=scale)
        rate = _constant(shared, self.rate, like=scale)
        precision = self.sample("precision", dist.Gamma(shape, rate).to_event(event_dim))
        return at(normal, scale * precision.rsqrt(), event_dim)


def _constant(
    shape: tuple[int, ...],
    value: float,
    *,
    like: Tensor,
) -> Tensor:
    """Return a constant that, unlike one of ``new_full``, does not depend on ``like`` in Pyro's
    provenance tracking."""
    return torch.full(shape, value, dtype=like.dtype, device=like.device)


PRIORS: dict[str, Prior] = {
    "normal": normal,
    "laplace": laplace,
    "student_t": student_t(),
    "horseshoe": Horseshoe(),
    "ard": ARD(),
}


def resolve(prior: Prior | str | None) -> Prior:
    """Return the prior of that name, the callable itself (a copy of a module), or the normal prior
    for None.

    Raises:
        ValueError: an unknown name.
    """
    prior = normal if prior is None else prior
    if not callable(prior):
        if prior not in PRIORS:
            raise ValueError(
                f"unknown prior {prior!r}; known: {', '.join(PRIORS)}, or a callable scale -> "
                "Distribution"
            )
        prior = PRIORS[prior]
    return copy.deepcopy(prior) if isinstance(prior, nn.Module) else prior


def at(prior: Prior, scale: Tensor, event_dim: int) -> TorchDistribution:
    """Return a prior at a scale ``(..., *event)``; leading dimensions, draws of Λ, become batch
    dimensions.

    It is in float32 or better, since no factorisation of PyTorch is in half precision.
    """
    scale = at_least_float32(scale)
    distribution = prior(scale, event_dim) if isinstance(prior, Hierarchical) else prior(scale)
    excess = len(distribution.event_shape) - event_dim
    if excess <= 0:
        return distribution
    return distribution.base_dist.to_event(distribution.reinterpreted_batch_ndims - excess)


def name_of(prior: Prior) -> str:
    """Return the name of a prior, for the signature of its layer."""
    if isinstance(prior, nn.Module):
        return type(prior).__name__
    return getattr(prior, "__name__", repr(prior))
