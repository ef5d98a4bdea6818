"""Likelihoods of S posterior samples, whose mixture is the posterior predictive of the labels."""

from collections.abc import Sequence
from itertools import chain
from typing import cast

import pyro.distributions as dist
import torch
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution, Independent, constraints

from probattn.messages import is_auxiliary, law_of, value_of
from probattn.site_info import info_of

NUM_SAMPLES = 1000
"""Samples of the mixture for estimates without a closed form: a probability has a standard error of
at most 0.016."""
SEED = 7_306_357_456_645_985_000
"""Seed of the samples that metrics draw; unlikely to be the data's seed, of which they must be
independent."""


class OfSamples(dist.TorchDistribution):
    """Base class of the laws of S posterior samples, of batch shape ``(S, ...)``.

    Args:
        base_dist: a law with the same kind of parameters.
        batch_shape: the batch shape.
    """

    arg_constraints = {}

    def __init__(self, base_dist: Distribution, *batch_shape: int) -> None:
        self.base_dist = base_dist
        super().__init__(torch.Size(batch_shape), base_dist.event_shape, validate_args=False)


class Stacked(OfSamples):
    """S distributions that ran one after another, as one of batch shape ``(S, *batch)``.

    Args:
        parts: distributions of batch shape ``batch``, one for each posterior draw.
    """

    def __init__(self, parts: Sequence[Distribution]) -> None:
        self.parts = parts
        super().__init__(parts[0], len(parts), *parts[0].batch_shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw samples ``(*sample_shape, S, *batch, *event)``."""
        samples = [law.sample(torch.Size(sample_shape)) for law in self.parts]
        return torch.stack(samples, len(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log densities ``(S, *batch)`` of values ``(*batch, *event)``, in nats."""
        return torch.stack([draw.log_prob(value) for draw in self.parts])


class Selected(OfSamples):
    """Law of m examples or tokens of a batch, as one of batch shape ``(S, m)``.

    Args:
        likelihood: law of batch shape ``(S, *batch)``.
        index: positions ``(m,)`` in each dimension of ``batch``; a position may occur several
            times.
    """

    def __init__(self, likelihood: Distribution, index: tuple[Tensor, ...]) -> None:
        self.index = index
        super().__init__(likelihood, likelihood.batch_shape[0], len(index[0]))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw samples ``(*sample_shape, S, m, *event)``."""
        samples = self.base_dist.sample(torch.Size(sample_shape))
        return samples[(slice(None),) * (len(sample_shape) + 1) + self.index]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log densities ``(S, m)`` of values ``(m, *event)``, in nats."""
        densities = value.new_empty(self.batch_shape)
        batch_shape = self.base_dist.batch_shape[1:]
        left = torch.arange(len(value), device=self.index[0].device)
        while len(left):
            # One of the rows of each position; the others follow in the next turn.
            row_of = left.new_full(batch_shape, -1)
            row_of[tuple(positions[left] for positions in self.index)] = left
            rows = row_of[row_of >= 0]
            index = tuple(positions[rows] for positions in self.index)
            batch = value.new_ones(*batch_shape, *self.event_shape)  # 1 is in most supports
            batch[index] = value[rows]
            log_prob = self.base_dist.log_prob(batch)
            densities = densities.to(log_prob)
            densities[:, rows] = log_prob[(slice(None),) + index]
            left = left[~torch.isin(left, rows)]
        return densities


def tokens_of(likelihood: Distribution) -> Selected:
    """Return the law of the real tokens of a batch, of batch shape ``(S, m)``."""
    example, token = cast(Tensor, token_mask(likelihood)).nonzero(as_tuple=True)
    if isinstance(likelihood, Selected):
        example = likelihood.index[0][example]
        likelihood = likelihood.base_dist
    parts = likelihood.parts if isinstance(likelihood, Stacked) else [likelihood]
    laws = [cast(dist.MaskedDistribution, masked(law)).base_dist for law in parts]
    law = Stacked(laws) if isinstance(likelihood, Stacked) else laws[0]
    return Selected(law, (example, token))


def innermost(likelihood: Distribution) -> Distribution:
    """Return the distribution inside ``to_event``, masks, :class:`Stacked` (its first) and
    :class:`Selected`."""
    while isinstance(likelihood, Independent | dist.MaskedDistribution | OfSamples):
        likelihood = likelihood.base_dist
    return likelihood


def values(likelihood: Distribution, name: str) -> Tensor:
    """Return an attribute of the innermost distribution, such as the mean ``(S, *batch, *event)``.

    It is NaN if the distribution does not implement it.
    """
    if isinstance(likelihood, Stacked):
        return torch.stack([values(draw, name) for draw in likelihood.parts])
    if isinstance(likelihood, Selected):
        return values(likelihood.base_dist, name)[(slice(None),) + likelihood.index]
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
    if inner is not likelihood and isinstance(inner, dist.MaskedDistribution):
        return inner
    return None


def token_mask(likelihood: Distribution) -> Tensor | None:
    """Return the mask ``(batch, tokens)`` of a likelihood of batch shape ``(S, batch)``; None if it
    has none."""
    if isinstance(likelihood, Selected):
        mask = token_mask(likelihood.base_dist)
        return None if mask is None else mask[likelihood.index[0]]
    inner = masked(likelihood.base_dist if isinstance(likelihood, Stacked) else likelihood)
    if inner is None:
        return None
    return inner._mask if isinstance(likelihood, Stacked) else inner._mask[0]


def parameter_checks(likelihood: Distribution) -> list[Tensor]:
    """Return True, on the device, for each parameter of the innermost distribution that PyTorch
    would allow."""
    if isinstance(likelihood, Stacked):
        return list(chain.from_iterable(map(parameter_checks, likelihood.parts)))
    inner = innermost(likelihood)
    checks = []
    for name, constraint in inner.arg_constraints.items():
        parameter = vars(inner).get(name)  # others follow from these
        if isinstance(parameter, Tensor) and not constraints.is_dependent(constraint):
            checks.append(constraint.check(parameter).all())
    return checks


def observation_checks(trace: Trace) -> list[Tensor]:
    """Return True, on the device, for each observed value of a model, and parameter of its law,
    that PyTorch allows."""
    of_sites: list[Tensor] = []
    for site in trace.nodes.values():
        is_observed = site["type"] == "sample" and site["is_observed"]
        if not is_observed or is_auxiliary(site) or info_of(site).drawn:
            continue
        law = law_of(site)
        of_sites += parameter_checks(law)
        try:
            has_density = cast(constraints.Constraint, innermost(law).support).check(value_of(site))
        except (AttributeError, NotImplementedError):
            continue  # it does not say which values have a density
        tokens = masked(law)
        if tokens is not None:
            has_density |= ~tokens._mask
        of_sites.append(has_density.all())
    return of_sites


def device_of(likelihood: Distribution) -> torch.device:
    """Return the device of a distribution's parameters."""
    for value in vars(likelihood).values():
        if isinstance(value, Tensor):
            return value.device
        if isinstance(value, Distribution):
            return device_of(value)
    return torch.device("cpu")
