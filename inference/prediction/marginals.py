"""Distribution functions of a likelihood's scalars, its moments, and the distribution inside its wrappers."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import singledispatch

import numpy as np
import pyro.distributions as dist
import scipy.special
import torch
from torch import Tensor
from torch.distributions import Distribution, transform_to

SEED = 7_306_357_456_645_985_000
"""Seed of what metrics draw: none that data are likely to be made with, of which they must be independent."""


def masked_part(likelihood: Distribution) -> dist.MaskedDistribution | None:
    """The masked distribution inside ``to_event``, or None: ``(*batch, *prefix)`` of what the mask tells apart."""
    while isinstance(likelihood, torch.distributions.Independent):
        likelihood = likelihood.base_dist
    return likelihood if isinstance(likelihood, dist.MaskedDistribution) else None


def unwrap(likelihood: Distribution) -> Distribution:
    """The distribution inside ``to_event`` and masks."""
    while isinstance(likelihood, (torch.distributions.Independent, dist.MaskedDistribution)):
        likelihood = likelihood.base_dist
    return likelihood


def is_discrete(likelihood: Distribution) -> bool:
    """True for a distribution over integers; False where its support is not known."""
    try:
        return likelihood.support.is_discrete
    except NotImplementedError:
        return False


def device_of(distribution: Distribution) -> torch.device:
    """The device of a distribution's parameters; of one without tensors the CPU."""
    parameter = _parameter(distribution)
    return torch.device("cpu") if parameter is None else parameter.device


def moments(likelihood: Distribution) -> tuple[Tensor, Tensor]:
    """Mean and variance ``(*batch, *event)``, NaN where the distribution has no formula for them."""
    found = []
    for name in ("mean", "variance"):
        try:
            found.append(getattr(likelihood, name))
        except NotImplementedError:
            shape = likelihood.batch_shape + likelihood.event_shape
            found.append(torch.full(shape, torch.nan, device=device_of(likelihood)))
    return found[0], found[1]


@contextmanager
def seeded(device: torch.device) -> Iterator[None]:
    """Draws inside are the same every time, and PyTorch's global generators stay where they are."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        yield


@singledispatch
def cdf(likelihood: Distribution, value: Tensor) -> Tensor:
    """P(Y ≤ value) of each scalar, in float64; values broadcast against ``(*batch, *event)``.

    Other distributions are registered as with :func:`functools.singledispatch`: ``@cdf.register``.

    Raises:
        NotImplementedError: a distribution whose distribution function is not known.
    """
    if likelihood.event_shape or is_discrete(likelihood):
        raise NotImplementedError(f"the distribution function of {type(likelihood).__name__} is not known")
    support = likelihood.support
    parameter = _parameter(likelihood)
    value = value if parameter is None else value.to(parameter.dtype)
    inside = support.check(value)
    within = transform_to(support)(torch.zeros_like(value))
    outside = value > getattr(support, "lower_bound", -torch.inf)  # what is not below the support is above it
    return likelihood.cdf(value.where(inside, within)).double().where(inside, outside.double())


@cdf.register(torch.distributions.Independent)
@cdf.register(dist.MaskedDistribution)
def _(likelihood: Distribution, value: Tensor) -> Tensor:
    return cdf(likelihood.base_dist, value)


@cdf.register
def _(likelihood: dist.ExpandedDistribution, value: Tensor) -> Tensor:
    if likelihood.event_shape:
        raise NotImplementedError("the distribution functions of expanded multivariate distributions are not known")
    found = cdf(likelihood.base_dist, value)
    return found.expand(torch.broadcast_shapes(found.shape, likelihood.batch_shape))


@cdf.register
def _(likelihood: torch.distributions.Normal, value: Tensor) -> Tensor:
    return normal_cdf((value.double() - likelihood.loc) / likelihood.scale.double())


@cdf.register(torch.distributions.MultivariateNormal)
@cdf.register(torch.distributions.LowRankMultivariateNormal)
def _(likelihood: Distribution, value: Tensor) -> Tensor:
    return normal_cdf((value.double() - likelihood.mean) / likelihood.variance.double().sqrt())


@cdf.register
def _(likelihood: torch.distributions.StudentT, value: Tensor) -> Tensor:
    return _by_scipy(scipy.special.stdtr, likelihood.df, (value.double() - likelihood.loc) / likelihood.scale)


@cdf.register
def _(likelihood: torch.distributions.Bernoulli, value: Tensor) -> Tensor:
    zero = 1 - likelihood.probs.double()
    return torch.where(value < 0, 0.0, torch.where(value < 1, zero, 1.0))


@cdf.register
def _(likelihood: torch.distributions.Poisson, value: Tensor) -> Tensor:
    return _of_counts(scipy.special.pdtr, value, likelihood.rate)


@cdf.register
def _(likelihood: torch.distributions.NegativeBinomial, value: Tensor) -> Tensor:
    def by_beta(k: np.ndarray, total_count: np.ndarray, stops: np.ndarray) -> np.ndarray:
        return scipy.special.betainc(total_count, k + 1, stops)

    return _of_counts(by_beta, value, likelihood.total_count, (-likelihood.logits.double()).sigmoid())


def _parameter(distribution: Distribution) -> Tensor | None:
    """A tensor that a distribution is made of, for its device and dtype."""
    for value in vars(distribution).values():
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Distribution):
            return _parameter(value)
    return None


def normal_cdf(z: Tensor) -> Tensor:
    """P(Z ≤ z) of Z ~ N(0, 1), exact in the lower tail, where ``torch.special.ndtr`` cancels to 0."""
    return torch.special.erfc(-z / math.sqrt(2)) / 2


def _of_counts(function: Callable, value: Tensor, *parameters: Tensor) -> Tensor:
    """The distribution function of a count, which is 0 below 0."""
    return torch.where(value < 0, 0.0, _by_scipy(function, value.double().floor().clamp(min=0), *parameters))


def _by_scipy(function: Callable, *arguments: Tensor) -> Tensor:
    """A function of scipy, in float64 on the CPU and back."""
    arrays = [each.detach().cpu().double().numpy() for each in arguments]
    return torch.as_tensor(function(*arrays), dtype=torch.float64).to(arguments[-1].device)
