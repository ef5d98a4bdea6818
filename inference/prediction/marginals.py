"""Marginal distributions of a likelihood's scalars: cumulative distribution function, moments, support, wrappers."""

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
"""Seed of the samples that metrics draw; unlikely to be the data's seed, of which they must be independent."""


def masked_part(likelihood: Distribution) -> dist.MaskedDistribution | None:
    """Return the masked distribution inside ``to_event``, whose batch shape is the mask's; None without a mask."""
    while isinstance(likelihood, torch.distributions.Independent):
        likelihood = likelihood.base_dist
    return likelihood if isinstance(likelihood, dist.MaskedDistribution) else None


def unwrap(likelihood: Distribution) -> Distribution:
    """Return the distribution inside ``to_event`` and masks."""
    while isinstance(likelihood, (torch.distributions.Independent, dist.MaskedDistribution)):
        likelihood = likelihood.base_dist
    return likelihood


def is_discrete(likelihood: Distribution) -> bool:
    """Return True for a distribution over integers; False if its support is not implemented."""
    try:
        return likelihood.support.is_discrete
    except NotImplementedError:
        return False


def device_of(distribution: Distribution) -> torch.device:
    """Return the device of a distribution's parameters; the CPU if it has no tensors."""
    parameter = _parameter(distribution)
    return torch.device("cpu") if parameter is None else parameter.device


def moments(likelihood: Distribution) -> tuple[Tensor, Tensor]:
    """Return mean and variance ``(*batch, *event)``; NaN if the distribution does not implement them."""
    values = []
    for name in ("mean", "variance"):
        try:
            values.append(getattr(likelihood, name))
        except NotImplementedError:
            shape = likelihood.batch_shape + likelihood.event_shape
            values.append(torch.full(shape, torch.nan, device=device_of(likelihood)))
    return values[0], values[1]


@contextmanager
def fixed_seed(device: torch.device) -> Iterator[None]:
    """Seed PyTorch's generators inside, so that samples are reproducible, and restore their states at the end."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        yield


@singledispatch
def cdf(likelihood: Distribution, value: Tensor) -> Tensor:
    """Cumulative distribution function P(Y ≤ value) of each scalar, in float64.

    Register further distributions with ``@cdf.register``, see :func:`functools.singledispatch`.

    Args:
        likelihood: distribution of batch shape ``batch`` and event shape ``event``.
        value: values that broadcast against ``(*batch, *event)``.

    Raises:
        NotImplementedError: the distribution function is not implemented.
    """
    if likelihood.event_shape or is_discrete(likelihood):
        raise NotImplementedError(f"the distribution function of {type(likelihood).__name__} is not implemented")
    support = likelihood.support
    parameter = _parameter(likelihood)
    value = value if parameter is None else value.to(parameter.dtype)
    inside = support.check(value)
    placeholder = transform_to(support)(torch.zeros_like(value))
    above = value > getattr(support, "lower_bound", -torch.inf)  # of values outside the support
    return likelihood.cdf(value.where(inside, placeholder)).double().where(inside, above.double())


@cdf.register(torch.distributions.Independent)
@cdf.register(dist.MaskedDistribution)
def _(likelihood: Distribution, value: Tensor) -> Tensor:
    return cdf(likelihood.base_dist, value)


@cdf.register
def _(likelihood: dist.ExpandedDistribution, value: Tensor) -> Tensor:
    if likelihood.event_shape:
        raise NotImplementedError("distribution functions of expanded multivariate distributions are not implemented")
    values = cdf(likelihood.base_dist, value)
    return values.expand(torch.broadcast_shapes(values.shape, likelihood.batch_shape))


@cdf.register
def _(likelihood: torch.distributions.Normal, value: Tensor) -> Tensor:
    return normal_cdf((value.double() - likelihood.loc) / likelihood.scale.double())


@cdf.register(torch.distributions.MultivariateNormal)
@cdf.register(torch.distributions.LowRankMultivariateNormal)
def _(likelihood: Distribution, value: Tensor) -> Tensor:
    return normal_cdf((value.double() - likelihood.mean) / likelihood.variance.double().sqrt())


@cdf.register
def _(likelihood: torch.distributions.StudentT, value: Tensor) -> Tensor:
    return _call_scipy(scipy.special.stdtr, likelihood.df, (value.double() - likelihood.loc) / likelihood.scale)


@cdf.register
def _(likelihood: torch.distributions.Bernoulli, value: Tensor) -> Tensor:
    zero = 1 - likelihood.probs.double()
    return torch.where(value < 0, 0.0, torch.where(value < 1, zero, 1.0))


@cdf.register
def _(likelihood: torch.distributions.Poisson, value: Tensor) -> Tensor:
    return _count_cdf(scipy.special.pdtr, value, likelihood.rate)


@cdf.register
def _(likelihood: torch.distributions.NegativeBinomial, value: Tensor) -> Tensor:
    def negative_binomial_cdf(k: np.ndarray, total_count: np.ndarray, stops: np.ndarray) -> np.ndarray:
        return scipy.special.betainc(total_count, k + 1, stops)

    return _count_cdf(negative_binomial_cdf, value, likelihood.total_count, (-likelihood.logits.double()).sigmoid())


def _parameter(distribution: Distribution) -> Tensor | None:
    """Return one of the distribution's parameters, for its device and dtype."""
    for value in vars(distribution).values():
        if isinstance(value, Tensor):
            return value
        if isinstance(value, Distribution):
            return _parameter(value)
    return None


def normal_cdf(z: Tensor) -> Tensor:
    """Distribution function of N(0, 1); accurate in the lower tail, where ``torch.special.ndtr`` cancels to 0."""
    return torch.special.erfc(-z / math.sqrt(2)) / 2


def _count_cdf(function: Callable, value: Tensor, *parameters: Tensor) -> Tensor:
    """Distribution function of a count: 0 below 0."""
    return torch.where(value < 0, 0.0, _call_scipy(function, value.double().floor().clamp(min=0), *parameters))


def _call_scipy(function: Callable, *arguments: Tensor) -> Tensor:
    """Call a SciPy function in float64 on the CPU; return its value on the arguments' device."""
    arrays = [each.detach().cpu().double().numpy() for each in arguments]
    return torch.as_tensor(function(*arrays), dtype=torch.float64).to(arguments[-1].device)
