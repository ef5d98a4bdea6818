"""Posterior predictive of numbers: the equally weighted mixture of the likelihoods of S posterior samples.

A component is the likelihood of some examples, of batch shape ``(S, b)`` and event shape ``(*event)``. Functions
consider the marginal of each of its scalars, compute in float64 and return ``(b, *event)``. Normal scalars have closed
forms. All else is estimated from :data:`NUM_SAMPLES` samples of the mixture, drawn with PyTorch's global generator: a
probability has a standard error of at most 0.016.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from probattn.inference.prediction import marginals

NUM_SAMPLES = 1000
"""Samples of the mixture for estimates without a closed form."""
BISECTIONS = 60


def sample(component: Distribution, num_samples: int) -> Tensor:
    """Draw ``(S · ⌈num_samples / S⌉, b, *event)`` from the mixture, equally many from each of its S parts."""
    number = math.ceil(num_samples / component.batch_shape[0])
    with torch.no_grad():
        return component.sample(torch.Size((number,))).double().flatten(0, 1)


def cdf(component: Distribution, value: Tensor, *, below: bool = False) -> Tensor:
    """Distribution function P(Y ≤ value), or P(Y < value) if ``below``, at values ``(b, *event)``."""
    value = value.double()
    if parameters := marginals.normal_parameters(component):
        return _normal_cdf(*parameters, value)
    exact = None if marginals.is_discrete(component) else _own_cdf(component, value)
    if exact is not None:
        return exact
    samples = sample(component, NUM_SAMPLES)
    return (samples < value if below else samples <= value).double().mean(0)


def quantiles(component: Distribution, levels: Tensor) -> Tensor:
    """Quantiles ``(L, b, *event)``: the smallest y with P(Y ≤ y) ≥ level, for levels ``(L,)`` between 0 and 1.

    Those of normal scalars are accurate to 1e-9 of the distance of the parts' quantiles; others are order statistics.
    """
    levels = levels.double().to(marginals.device_of(component))
    parameters = marginals.normal_parameters(component)
    if parameters is None:
        samples = sample(component, NUM_SAMPLES).sort(0).values
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


def crps(component: Distribution, y: Tensor) -> Tensor:
    """Continuous ranked probability score E|Y − y| − ½ E|Y − Y′| of labels ``(b, *event)``, in their units.

    Exact for Gaussian parts (Grimit et al., 2006, eq. 3); otherwise an unbiased estimate from samples, NaN where a part
    has no mean.
    """
    y = y.double()
    if parameters := marginals.normal_parameters(component):
        loc, scale = parameters
        pairs = zip(loc, scale, strict=True)
        spread = sum(_mean_abs(mean - loc, (sd**2 + scale**2).sqrt()).mean(0) for mean, sd in pairs) / len(loc)
        return _mean_abs(y - loc, scale).mean(0) - spread / 2
    one, other = sample(component, NUM_SAMPLES), sample(component, NUM_SAMPLES)
    both = torch.cat([one, other])  # distances of pairs between two independent sets: none pairs a sample with itself
    between = _sum_distances(both) - _sum_distances(one) - _sum_distances(other)
    mean, _ = marginals.moments(component)
    score = (both - y).abs().mean(0) - between / (2 * len(one) * len(other)) / 2
    return score.where(mean.isfinite().all(0), torch.nan)


def _normal_cdf(loc: Tensor, scale: Tensor, value: Tensor) -> Tensor:
    """Mixture's distribution function ``(..., b, *event)``; accurate in the lower tail, where ``ndtr`` cancels to 0."""
    z = (value.unsqueeze(-loc.dim()) - loc) / scale
    return torch.special.erfc(-z / math.sqrt(2)).mean(-loc.dim()) / 2


def _own_cdf(component: Distribution, value: Tensor) -> Tensor | None:
    """Mean of PyTorch's distribution functions of the parts, 0 and 1 outside the support; None if it has none."""
    base = marginals.unwrap(component)
    if base.event_shape or base.batch_shape != component.batch_shape + component.event_shape:
        return None
    try:
        support = base.support
        inside = support.check(value).expand(base.batch_shape)
        valid = torch.distributions.transform_to(support)(torch.zeros_like(value))
        values = base.cdf(value.where(inside, valid)).double()
    except NotImplementedError:
        return None
    above = (value > getattr(support, "lower_bound", -torch.inf)).double()
    return values.where(inside, above).mean(0)


def _mean_abs(loc: Tensor, scale: Tensor) -> Tensor:
    """Mean E|X| of X ~ N(loc, scale²)."""
    z = loc / scale
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    return scale * 2 * density + loc * torch.special.erf(z / math.sqrt(2))


def _sum_distances(samples: Tensor) -> Tensor:
    """Sum of |x − x′| over ordered pairs along the first dimension, by sorting."""
    weights = 2 * torch.arange(len(samples), dtype=samples.dtype, device=samples.device) - len(samples) + 1
    return 2 * torch.tensordot(weights, samples.sort(0).values, dims=1)
