"""Posterior predictive of labels: the equally weighted mixture of the likelihoods of S posterior samples.

Functions of numbers consider the marginal of each scalar and compute in float64. Normal scalars have closed forms. All
else is estimated from :data:`NUM_SAMPLES` samples of the mixture, drawn with a fixed seed: a probability has a standard
error of at most 0.016.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)
from torch.distributions.constraints import Constraint

NORMAL = (Normal, MultivariateNormal, LowRankMultivariateNormal)
"""Distributions whose scalars are normal."""
NUM_SAMPLES = 1000
"""Samples of the mixture for estimates without a closed form."""
BISECTIONS = 60
SEED = 7_306_357_456_645_985_000
"""Seed of the samples that metrics draw; unlikely to be the data's seed, of which they must be independent."""


class Stacked(dist.TorchDistribution):
    """S distributions that ran one after another, as one of batch shape ``(S, *batch)``.

    Args:
        parts: distributions of batch shape ``batch``.
    """

    arg_constraints = {}

    def __init__(self, parts: Sequence[Distribution]) -> None:
        self.parts, self.base_dist = tuple(parts), parts[0]
        shape = torch.Size((len(parts), *parts[0].batch_shape))
        super().__init__(shape, parts[0].event_shape, validate_args=False)

    @property
    def support(self) -> Constraint:
        """Support of the first part."""
        return self.base_dist.support

    mean = property(lambda self: torch.stack([part.mean for part in self.parts]))
    variance = property(lambda self: torch.stack([part.variance for part in self.parts]))
    probs = property(lambda self: torch.stack([part.probs for part in self.parts]))
    energy = property(lambda self: torch.stack([part.energy for part in self.parts]))

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draw samples ``(*sample_shape, *batch, *event)``."""
        return torch.stack([part.sample(torch.Size(sample_shape)) for part in self.parts], len(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log densities, in nats."""
        shape = self.batch_shape + self.event_shape
        value = value.expand(torch.broadcast_shapes(value.shape, shape))
        pairs = zip(self.parts, value.unbind(-len(shape)), strict=True)
        return torch.stack([part.log_prob(labels) for part, labels in pairs], -len(self.batch_shape))


WRAPPERS = (Independent, dist.MaskedDistribution, dist.ExpandedDistribution, Stacked)


class Mixture:
    """Mixture over S samples of the likelihoods of m examples.

    Args:
        laws: likelihoods of batch shape ``(S, b)``, or ``(S, b, tokens)`` where tokens are examples.
        rows: indices ``(m,)`` into the examples of all laws, one after another; None takes all.
    """

    def __init__(self, laws: Sequence[Distribution], rows: Tensor | None = None) -> None:
        sizes = torch.tensor([math.prod(law.batch_shape[1:]) for law in laws])
        ends = sizes.cumsum(0)
        rows = torch.arange(int(ends[-1])) if rows is None else rows
        owners = torch.bucketize(rows.contiguous(), ends, right=True)
        order, counts = owners.argsort(stable=True), owners.bincount(minlength=len(laws)).tolist()
        local = (rows - (ends - sizes)[owners])[order]
        pieces = zip(laws, local.split(counts), order.split(counts), strict=True)
        parts = [(law, indices.to(device_of(law)), places) for law, indices, places in pieces]
        self.parts = [part for part in parts if len(part[1])] or parts[:1]
        """Laws with the indices of their examples, and the places of these in the mixture."""

    def log_prob(self, y: Tensor) -> Tensor:
        """Log densities ``(m,)`` of labels ``(m, *event)``, of which each law takes those of its event shape."""

        values = []
        for law, rows, places in self.parts:
            labels = y[places.to(y.device)].to(rows.device)
            values.append(_log_densities(law, rows, labels[(slice(None), *map(slice, law.event_shape))]))
        return self._ordered(values, 0)

    def cdf(self, y: Tensor, *, below: bool = False) -> Tensor:
        """Distribution function P(Y ≤ y), or P(Y < y) if ``below``, at values ``(m, *event)``."""
        if parameters := self.normal_parameters():
            return _normal_cdf(*parameters, y.to(parameters[0]))
        samples = self.sample(NUM_SAMPLES)
        return (samples < y.to(samples) if below else samples <= y.to(samples)).double().mean(0)

    def quantiles(self, levels: Tensor) -> Tensor:
        """Quantiles ``(L, m, *event)``: the smallest y with P(Y ≤ y) ≥ level, for levels ``(L,)`` between 0 and 1.

        Those of normal scalars are accurate to 1e-9 of the distance of the parts' quantiles; others are order
        statistics.
        """
        levels = levels.double().to(device_of(self.parts[0][0]))
        parameters = self.normal_parameters()
        if parameters is None:
            samples = self.sample(NUM_SAMPLES).sort(0).values
            return samples[(levels * len(samples)).ceil().long().clamp(min=1) - 1]
        loc, scale = parameters
        levels = levels.reshape(-1, *(1,) * (loc.dim() - 1))
        ends = loc + scale * torch.special.ndtri(levels).unsqueeze(1)  # between the parts' quantiles lies the mixture's
        low, high = ends.amin(1), ends.amax(1)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            reached = _normal_cdf(loc, scale, middle) >= levels
            low, high = low.where(reached, middle), middle.where(reached, high)
        return (low + high) / 2

    def sample(self, num_samples: int) -> Tensor:
        """Draw ``(S · ⌈num_samples / S⌉, m, *event)``, equally many from each of the S parts, with a fixed seed."""
        values = []
        with fixed_seed(self.parts[0][1].device), torch.no_grad():
            for law, rows, _ in self.parts:
                samples = law.sample(torch.Size((math.ceil(num_samples / law.batch_shape[0]),))).double()
                values.append(_select(law, samples, rows).flatten(0, 1))
        return self._ordered(values, 1)

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score E|Y − y| − ½ E|Y − Y′| of labels ``(m, *event)``, in their units.

        Exact for Gaussian parts (Grimit et al., 2006, eq. 3); otherwise an unbiased estimate from samples.
        """
        if parameters := self.normal_parameters():
            loc, scale = parameters
            y = y.to(loc)
            pairs = zip(loc, scale, strict=True)
            spread = sum(_mean_abs(mean - loc, (sd**2 + scale**2).sqrt()).mean(0) for mean, sd in pairs) / len(loc)
            return _mean_abs(y - loc, scale).mean(0) - spread / 2
        size = self.parts[0][0].batch_shape[0]
        both = self.sample(2 * size * math.ceil(NUM_SAMPLES / size))
        one, other = both.chunk(2)  # distances of pairs between two sets: none pairs a sample with itself
        between = _sum_distances(both) - _sum_distances(one) - _sum_distances(other)
        return (both - y.to(both)).abs().mean(0) - between / (2 * len(one) * len(other)) / 2

    def normal_parameters(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and standard deviation ``(S, m, *event)`` of normal scalars in float64; None for other laws."""
        values = []
        for law, rows, _ in self.parts:
            base, shape = innermost(law), law.batch_shape + law.event_shape
            if not isinstance(base, NORMAL):
                return None
            if not isinstance(base, Normal) or base.batch_shape != shape:
                base = law
            both = torch.stack([base.mean.double().expand(shape), base.stddev.double().expand(shape)])
            values.append(_select(law, both, rows))
        loc, scale = self._ordered(values, 2)
        return loc, scale

    def _ordered(self, values: Sequence[Tensor], dim: int) -> Tensor:
        """Join the values of the parts along the examples, in the order of the mixture."""
        joined, order = torch.cat(list(values), dim), torch.cat([places for _, _, places in self.parts])
        return joined.index_select(dim, order.argsort().to(joined.device))


def tokens_of(likelihood: Distribution) -> Distribution | None:
    """Return the masked distribution of tokens inside ``to_event``, of batch shape ``(S, b, tokens)``; None without."""
    if isinstance(likelihood, Stacked):
        parts = [tokens_of(part) for part in likelihood.parts]
        return None if None in parts else Stacked(parts)
    masked = _masked(likelihood)
    return None if masked is None else masked.base_dist


def label_mask(likelihood: Distribution) -> Tensor | None:
    """Return the mask ``(batch, tokens)`` of a likelihood of batch shape ``(S, batch)``; None if it has none."""
    if isinstance(likelihood, Stacked):
        return label_mask(likelihood.base_dist.expand((1, *likelihood.batch_shape[1:])))
    masked = _masked(likelihood)
    if masked is None:
        return None
    # A masked distribution does not give its mask, but its density shows it: here 1 at real tokens, 0 elsewhere.
    ones = copy.copy(masked)
    ones.base_dist = dist.Unit(torch.ones(masked.batch_shape, device=device_of(masked)))
    return dist.MaskedDistribution.log_prob(ones, torch.empty(0))[0] > 0


def unwrap(likelihood: Distribution) -> Distribution:
    """Return the distribution inside ``to_event`` and masks."""
    if isinstance(likelihood, Stacked):
        return Stacked([unwrap(part) for part in likelihood.parts])
    while isinstance(likelihood, (Independent, dist.MaskedDistribution)):
        likelihood = likelihood.base_dist
    return likelihood


def innermost(likelihood: Distribution) -> Distribution:
    """Return the distribution inside all wrappers; of several that ran one after another the first."""
    while isinstance(likelihood, WRAPPERS):
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


@contextmanager
def fixed_seed(device: torch.device) -> Iterator[None]:
    """Seed PyTorch's generators inside, so that samples are reproducible, and restore their states at the end."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        yield


def _select(law: Distribution, values: Tensor, rows: Tensor) -> Tensor:
    """Return values ``(..., *batch, *event)`` at some examples, as ``(..., S, m, *event)``."""
    event = len(law.event_shape)
    first = values.dim() - event - len(law.batch_shape) + 1
    return values.flatten(first, values.dim() - event - 1).index_select(first, rows)


def _log_densities(law: Distribution, rows: Tensor, y: Tensor) -> Tensor:
    """Log densities ``(m,)`` of labels ``(m, *event)`` of some examples, averaged over the samples.

    Examples without a label repeat the first one. An example with several labels has one in each repetition.
    """
    shape, order = tuple(law.batch_shape[1:]), rows.argsort(stable=True)
    numbers = torch.arange(len(rows), device=rows.device)
    repetition = torch.empty_like(rows)
    repetition[order] = numbers - torch.searchsorted(rows[order], rows[order])
    if not len(rows):
        return torch.zeros(0, device=rows.device)
    index = rows.new_zeros(int(repetition.max()) + 1, math.prod(shape))
    index[repetition, rows] = numbers
    values = law.log_prob(y[index].unflatten(1, shape).unsqueeze(1))  # labels (repetitions, 1, *batch, *event)
    return values.flatten(2)[repetition, :, rows].logsumexp(1) - math.log(law.batch_shape[0])


def _normal_cdf(loc: Tensor, scale: Tensor, value: Tensor) -> Tensor:
    """Mixture's distribution function ``(..., m, *event)``; accurate in the lower tail, where ``ndtr`` cancels to 0."""
    z = (value.unsqueeze(-loc.dim()) - loc) / scale
    return torch.special.erfc(-z / math.sqrt(2)).mean(-loc.dim()) / 2


def _mean_abs(loc: Tensor, scale: Tensor) -> Tensor:
    """Mean E|X| of X ~ N(loc, scale²)."""
    z = loc / scale
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    return scale * 2 * density + loc * torch.special.erf(z / math.sqrt(2))


def _sum_distances(samples: Tensor) -> Tensor:
    """Sum of |x − x′| over ordered pairs along the first dimension, by sorting."""
    weights = 2 * torch.arange(len(samples), dtype=samples.dtype, device=samples.device) - len(samples) + 1
    return 2 * torch.tensordot(weights, samples.sort(0).values, dims=1)


def _masked(likelihood: Distribution) -> dist.MaskedDistribution | None:
    """Return the masked distribution inside ``to_event``, whose batch shape is the mask's; None without a mask."""
    while isinstance(likelihood, Independent):
        likelihood = likelihood.base_dist
    return likelihood if isinstance(likelihood, dist.MaskedDistribution) else None
