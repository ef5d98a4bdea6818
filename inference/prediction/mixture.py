"""Likelihoods of S posterior samples, whose mixture is the posterior predictive of the labels."""

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

NUM_SAMPLES = 1000
"""Samples of the mixture for estimates without a closed form: a probability has a standard error of at most 0.016."""
SEED = 7_306_357_456_645_985_000
"""Seed of the samples that metrics draw; unlikely to be the data's seed, of which they must be independent."""


class Stacked(dist.TorchDistribution):
    """S distributions that ran one after another, as one of batch shape ``(S, *batch)``.

    Args:
        parts: distributions of batch shape ``batch``.
    """

    arg_constraints = {}

    def __init__(self, parts: Sequence[Distribution]) -> None:
        self.parts, self.base_dist = parts, parts[0]
        shape = torch.Size((len(parts), *parts[0].batch_shape))
        super().__init__(shape, parts[0].event_shape, validate_args=False)

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draw samples ``(*sample_shape, S, *batch, *event)``."""
        return torch.stack([part.sample(torch.Size(sample_shape)) for part in self.parts], len(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log densities ``(S, *batch)`` of values ``(*batch, *event)``, in nats."""
        return torch.stack([part.log_prob(value) for part in self.parts])


class Tokens(dist.TorchDistribution):
    """Likelihood of the m real tokens of a batch, as one of batch shape ``(S, m)``.

    Args:
        likelihood: likelihood of examples with a mask of tokens, of batch shape ``(S, batch)``.
    """

    arg_constraints = {}

    def __init__(self, likelihood: Distribution) -> None:
        self.mask = token_mask(likelihood)
        if isinstance(likelihood, Stacked):
            self.base_dist = Stacked([masked(part).base_dist for part in likelihood.parts])
        else:
            self.base_dist = masked(likelihood).base_dist
        shape = torch.Size((likelihood.batch_shape[0], int(self.mask.sum())))
        super().__init__(shape, self.base_dist.event_shape, validate_args=False)

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draw samples ``(*sample_shape, S, m, *event)``."""
        samples = self.base_dist.sample(torch.Size(sample_shape))
        return samples[(slice(None),) * (len(sample_shape) + 1) + (self.mask,)]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log densities ``(S, m)`` of values ``(m, *event)``, in nats."""
        padded = value.new_ones(*self.mask.shape, *self.event_shape)  # 1 is in the support of most distributions
        padded[self.mask] = value
        return self.base_dist.log_prob(padded)[:, self.mask]


def innermost(likelihood: Distribution) -> Distribution:
    """Return the distribution inside ``to_event``, masks, :class:`Stacked` (its first) and :class:`Tokens`."""
    while isinstance(likelihood, Independent | dist.MaskedDistribution | Stacked | Tokens):
        likelihood = likelihood.base_dist
    return likelihood


def values(likelihood: Distribution, name: str) -> Tensor:
    """Return an attribute of the innermost distribution, such as the mean ``(S, *batch, *event)``.

    It is NaN if the distribution does not implement it.
    """
    if isinstance(likelihood, Stacked):
        return torch.stack([values(part, name) for part in likelihood.parts])
    if isinstance(likelihood, Tokens):
        return values(likelihood.base_dist, name)[:, likelihood.mask]
    inner = innermost(likelihood)
    try:
        return getattr(inner, name)
    except NotImplementedError:
        return torch.full(inner.batch_shape + inner.event_shape, torch.nan, device=device_of(inner))


def masked(likelihood: Distribution) -> dist.MaskedDistribution | None:
    """Return the masked distribution of tokens inside ``to_event``; None without one."""
    inner = likelihood
    while isinstance(inner, Independent):
        inner = inner.base_dist
    return inner if inner is not likelihood and isinstance(inner, dist.MaskedDistribution) else None


def token_mask(likelihood: Distribution) -> Tensor | None:
    """Return the mask ``(batch, tokens)`` of a likelihood of batch shape ``(S, batch)``; None if it has none."""
    if isinstance(likelihood, Stacked):
        inner = masked(likelihood.base_dist)
        return None if inner is None else inner._mask
    inner = masked(likelihood)
    return None if inner is None else inner._mask[0]


def device_of(likelihood: Distribution) -> torch.device:
    """Return the device of a distribution's parameters."""
    first = next(value for value in vars(likelihood).values() if isinstance(value, Tensor | Distribution))
    return first.device if isinstance(first, Tensor) else device_of(first)
