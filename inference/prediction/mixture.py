"""Posterior predictive of labels: the equally weighted mixture of the likelihoods of S posterior samples.

Functions of numbers consider the marginal of each scalar and compute in float64. Normal scalars have closed forms. All
else is estimated from :data:`NUM_SAMPLES` samples of the mixture, drawn with PyTorch's global generator: a probability
has a standard error of at most 0.016.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
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
        parts = list(zip(laws, local.split(counts), order.split(counts), strict=True))
        self.parts = [part for part in parts if len(part[1])] or parts[:1]
        """Laws with the indices of their examples, and the places of these in the mixture."""

    def log_prob(self, y: Tensor) -> Tensor:
        """Log densities ``(m,)`` of labels ``(m, *event)``, of which each law takes those of its event shape."""

        def log_prob(law: Distribution, rows: Tensor, y: Tensor) -> Tensor:
            y = y[(slice(None), *map(slice, law.event_shape))]
            return _at_labels(law, rows, y, law.log_prob).logsumexp(1) - math.log(law.batch_shape[0])

        return self._gather(log_prob, 0, y) if len(y) else torch.zeros(0)

    def cdf(self, y: Tensor, *, below: bool = False) -> Tensor:
        """Distribution function P(Y ≤ y), or P(Y < y) if ``below``, at values ``(m, *event)``."""
        y = y.double()
        if parameters := self.normal_parameters():
            return _normal_cdf(*parameters, y.to(parameters[0].device))

        def cdf(law: Distribution, rows: Tensor, y: Tensor) -> Tensor:
            if not is_discrete(law) and (exact := _own_cdf(law, rows, y)) is not None:
                return exact
            samples = _samples(law, rows, NUM_SAMPLES)
            return (samples < y if below else samples <= y).double().mean(0)

        return self._gather(cdf, 0, y)

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
        """Draw ``(S · ⌈num_samples / S⌉, m, *event)``, equally many from each of the S parts."""
        return self._gather(lambda law, rows: _samples(law, rows, num_samples), 1)

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score E|Y − y| − ½ E|Y − Y′| of labels ``(m, *event)``, in their units.

        Exact for Gaussian parts (Grimit et al., 2006, eq. 3); otherwise an unbiased estimate from samples, NaN where a
        part has no mean.
        """
        if parameters := self.normal_parameters():
            loc, scale = parameters
            y = y.to(loc)
            pairs = zip(loc, scale, strict=True)
            spread = sum(_mean_abs(mean - loc, (sd**2 + scale**2).sqrt()).mean(0) for mean, sd in pairs) / len(loc)
            return _mean_abs(y - loc, scale).mean(0) - spread / 2
        one, other = self.sample(NUM_SAMPLES), self.sample(NUM_SAMPLES)
        both = torch.cat([one, other])  # distances of pairs between two sets: none pairs a sample with itself
        between = _sum_distances(both) - _sum_distances(one) - _sum_distances(other)
        means = self._gather(lambda law, rows: _select(law, moments(law)[0], rows), 1)
        score = (both - y.to(both)).abs().mean(0) - between / (2 * len(one) * len(other)) / 2
        return score.where(means.isfinite().all(0), torch.nan)

    def normal_parameters(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and standard deviation ``(S, m, *event)`` of normal scalars in float64; None for other laws."""
        if normal_parameters(self.parts[0][0]) is None:
            return None
        loc, scale = self._gather(lambda law, rows: _select(law, torch.stack(normal_parameters(law)), rows), 2)
        return loc, scale

    def _gather(self, function: Callable[..., Tensor], dim: int, y: Tensor | None = None) -> Tensor:
        """Apply a function to each law, its examples and their labels; join the results along the examples."""
        results = []
        for law, rows, places in self.parts:
            device = device_of(law)
            labels = () if y is None else (y[places.to(y.device)].to(device),)
            results.append(function(law, rows.to(device), *labels))
        joined, order = torch.cat(results, dim), torch.cat([places for _, _, places in self.parts])
        return joined.index_select(dim, order.argsort().to(joined.device))


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
        return self._values("log_prob", value)

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution functions of the parts."""
        return self._values("cdf", value)

    def _values(self, method: str, value: Tensor) -> Tensor:
        shape = self.batch_shape + self.event_shape
        value = value.expand(torch.broadcast_shapes(value.shape, shape))
        pairs = zip(self.parts, value.unbind(-len(shape)), strict=True)
        return torch.stack([getattr(part, method)(labels) for part, labels in pairs], -len(self.batch_shape))


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


def has_kind(likelihood: Distribution, kind: type[Distribution]) -> bool:
    """Return True if the distribution inside wrappers is of a class."""
    while isinstance(likelihood, (Independent, dist.MaskedDistribution, Stacked)):
        likelihood = likelihood.base_dist
    return isinstance(likelihood, kind)


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
    while isinstance(base, (Independent, dist.MaskedDistribution, dist.ExpandedDistribution, Stacked)):
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


def _select(law: Distribution, values: Tensor, rows: Tensor) -> Tensor:
    """Return values ``(..., *batch, *event)`` at some examples, as ``(..., S, m, *event)``."""
    event = len(law.event_shape)
    first = values.dim() - event - len(law.batch_shape) + 1
    return values.flatten(first, values.dim() - event - 1).index_select(first, rows)


def _at_labels(law: Distribution, rows: Tensor, y: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Evaluate a function of all examples' labels at labels ``(m, *event)`` of some examples.

    Examples without a label repeat the first one. An example with several labels has one in each repetition.

    Args:
        law: the distribution.
        rows: indices of the examples ``(m,)``.
        y: their labels.
        function: takes labels ``(1, *positions, *event)`` that broadcast over the samples.

    Returns:
        ``(m, S, ...)``.
    """
    order = rows.argsort(stable=True)
    repetition = torch.empty_like(rows)
    repetition[order] = torch.arange(len(rows), device=rows.device) - torch.searchsorted(rows[order], rows[order])
    examples = tuple(law.batch_shape[1:])
    index = rows.new_zeros(int(rows.bincount().max()), math.prod(examples))
    index[repetition, rows] = torch.arange(len(rows), device=rows.device)
    values = function(y[index].unflatten(1, examples).unsqueeze(1))
    return values.flatten(2, 1 + len(examples))[repetition, :, rows]


def _samples(law: Distribution, rows: Tensor, number: int) -> Tensor:
    with torch.no_grad():
        samples = law.sample(torch.Size((math.ceil(number / law.batch_shape[0]),))).double()
    return _select(law, samples, rows).flatten(0, 1)


def _normal_cdf(loc: Tensor, scale: Tensor, value: Tensor) -> Tensor:
    """Mixture's distribution function ``(..., m, *event)``; accurate in the lower tail, where ``ndtr`` cancels to 0."""
    z = (value.unsqueeze(-loc.dim()) - loc) / scale
    return torch.special.erfc(-z / math.sqrt(2)).mean(-loc.dim()) / 2


def _own_cdf(law: Distribution, rows: Tensor, y: Tensor) -> Tensor | None:
    """Mean of PyTorch's distribution functions of the parts, 0 and 1 outside the support; None if it has none."""
    base = unwrap(law)
    if not len(rows) or base.event_shape or base.batch_shape != law.batch_shape + law.event_shape:
        return None

    def cdf(value: Tensor) -> Tensor:
        support = base.support
        inside = support.check(value).expand(torch.broadcast_shapes(value.shape, base.batch_shape))
        valid = torch.distributions.transform_to(support)(torch.zeros_like(value))
        values = base.cdf(value.where(inside, valid)).double()
        return values.where(inside, (value > getattr(support, "lower_bound", -torch.inf)).double())

    try:
        return _at_labels(law, rows, y, cdf).mean(1)
    except NotImplementedError:
        return None


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
