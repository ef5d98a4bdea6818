"""Likelihoods as laws of scalars: the distribution inside wrappers, moments, device, and samples with a fixed seed."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, LowRankMultivariateNormal, MultivariateNormal, Normal

from probattn.inference.prediction.batch_views import View

NORMAL = (Normal, MultivariateNormal, LowRankMultivariateNormal)
"""Distributions whose scalars are normal."""
SEED = 7_306_357_456_645_985_000
"""Seed of the samples that metrics draw; unlikely to be the data's seed, of which they must be independent."""


def masked_part(likelihood: Distribution) -> dist.MaskedDistribution | None:
    """Return the masked distribution inside ``to_event``, whose batch shape is the mask's; None without a mask."""
    while isinstance(likelihood, Independent):
        likelihood = likelihood.base_dist
    return likelihood if isinstance(likelihood, dist.MaskedDistribution) else None


def unwrap(likelihood: Distribution) -> Distribution:
    """Return the distribution inside ``to_event`` and masks."""
    while isinstance(likelihood, (Independent, dist.MaskedDistribution)):
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
    for value in vars(distribution).values():
        if isinstance(value, Tensor):
            return value.device
        if isinstance(value, Distribution):
            return device_of(value)
    return torch.device("cpu")


def moments(likelihood: Distribution) -> tuple[Tensor, Tensor]:
    """Return mean and variance ``(*batch, *event)``; NaN if the distribution does not implement them."""
    shape = likelihood.batch_shape + likelihood.event_shape
    values = []
    for name in ("mean", "variance"):
        try:
            values.append(getattr(likelihood, name))
        except NotImplementedError:
            values.append(torch.full(shape, torch.nan, device=device_of(likelihood)))
    return values[0], values[1]


def normal_parameters(likelihood: Distribution) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation ``(*batch, *event)`` of normal scalars in float64; None for other laws."""
    base = likelihood
    while isinstance(base, (Independent, dist.MaskedDistribution, dist.ExpandedDistribution, View)):
        base = base.base_dist
    if not isinstance(base, NORMAL):
        return None
    shape = likelihood.batch_shape + likelihood.event_shape
    law = base if isinstance(base, Normal) and base.batch_shape == shape else likelihood
    return law.mean.double().expand(shape), law.stddev.double().expand(shape)


@contextmanager
def fixed_seed(device: torch.device) -> Iterator[None]:
    """Seed PyTorch's generators inside, so that samples are reproducible, and restore their states at the end."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        yield
