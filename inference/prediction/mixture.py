"""Posterior predictive of numbers: the equally weighted mixture of the likelihoods of S posterior samples.

A component is the likelihood of some examples, of batch shape ``(S, b)`` and event shape ``(*event)``. Functions
consider the marginal of each of its scalars, compute in float64 and return ``(b, *event)``. If the distribution
function is not implemented, they estimate from :data:`NUM_SAMPLES` samples of the mixture, drawn with PyTorch's global
generator.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from probattn.inference.prediction import marginals
from probattn.inference.prediction.root_finding import bracket, first_integer, root

NUM_SAMPLES, NUM_CRPS_SAMPLES = 1000, 200
"""Total samples of the mixture for estimates without a closed form."""


def sample(component: Distribution, num_samples: int) -> Tensor:
    """Draw ``(S · ⌈num_samples / S⌉, b, *event)`` from the mixture, equally many from each of its S parts."""
    return _stratified_sample(component, num_samples).flatten(0, 1)


def cdf(component: Distribution, value: Tensor, *, below: bool = False) -> Tensor:
    """Distribution function P(Y ≤ value), or P(Y < value) if ``below``, at values ``(..., b, *event)``."""
    value = value.double()
    try:
        return _exact_cdf(component, value - 1 if below and marginals.is_discrete(component) else value)
    except NotImplementedError:
        samples = sample(component, NUM_SAMPLES)
        flat = value.reshape(-1, *samples.shape[1:])
        shares = [(samples < each if below else samples <= each).double().mean(0) for each in flat]
        return torch.stack(shares).reshape(value.shape)


def quantiles(component: Distribution, levels: Tensor) -> Tensor:
    """Quantiles ``(L, b, *event)``: the smallest y with P(Y ≤ y) ≥ level, for levels ``(L,)`` between 0 and 1.

    Accurate to 9 digits for real numbers.
    """
    levels = levels.double()
    try:
        return _invert_cdf(component, levels.reshape(-1, *(1,) * _num_inner_dims(component)))
    except NotImplementedError:
        samples = sample(component, NUM_SAMPLES).sort(0).values
        return samples[(levels * len(samples)).ceil().long().clamp(min=1).cpu() - 1]


def crps(component: Distribution, y: Tensor) -> Tensor:
    """Continuous ranked probability score E|Y − y| − ½ E|Y − Y′| of labels ``(b, *event)``, in their units.

    Exact for Gaussian parts (Grimit et al., 2006, eq. 3); otherwise an unbiased estimate from
    :data:`NUM_CRPS_SAMPLES` samples, NaN where a part has no mean.
    """
    y = y.double()
    base = marginals.unwrap(component)
    if isinstance(base, torch.distributions.Normal):
        shape = component.batch_shape + component.event_shape
        return _gaussian_crps(base.loc.double().expand(shape), base.scale.double().expand(shape), y)
    samples = _stratified_sample(component, NUM_CRPS_SAMPLES)
    mean, _ = marginals.moments(component)
    return _sample_crps(samples, y).where(mean.isfinite().all(0), torch.nan)


def _num_inner_dims(component: Distribution) -> int:
    """Number of dimensions after that of the posterior samples."""
    return len(component.batch_shape) - 1 + len(component.event_shape)


def _stratified_sample(component: Distribution, num_samples: int) -> Tensor:
    """Draw ``(k, S, b, *event)``: k ≥ 2 samples from each part."""
    with torch.no_grad():
        return component.sample((max(2, math.ceil(num_samples / component.batch_shape[0])),)).double()


def _exact_cdf(component: Distribution, value: Tensor) -> Tensor:
    dim = -1 - _num_inner_dims(component)
    return marginals.cdf(component, value.unsqueeze(dim)).mean(dim)


def _invert_cdf(component: Distribution, levels: Tensor) -> Tensor:
    """Invert the distribution function by root finding, starting one standard deviation around the mean."""
    shape, discrete = component.batch_shape[1:] + component.event_shape, marginals.is_discrete(component)
    mean, variance = (each.double().nan_to_num(0.0, posinf=0.0, neginf=0.0) for each in marginals.moments(component))
    centre, width = mean.mean(0), variance.mean(0).sqrt()
    width, levels = width.where(width > 0, 1.0), levels.to(centre.device)
    if discrete:
        centre, width = centre.floor(), width.ceil()
    low, high = ((centre + sign * width).expand(len(levels), *shape) for sign in (-1, 1))

    def reaches(value: Tensor) -> Tensor:
        return _exact_cdf(component, value) >= levels

    low, high = bracket(reaches, low, high)
    if discrete:
        return first_integer(reaches, low, high)
    return root(lambda value: _exact_cdf(component, value) - levels, low, high)


def _gaussian_crps(loc: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    """CRPS of an equal mixture of Gaussians with means and standard deviations ``(S, ...)``."""
    pairs = zip(loc, scale, strict=True)
    spread = torch.stack([_mean_abs(each - loc, (sd**2 + scale**2).sqrt()).mean(0) for each, sd in pairs]).mean(0)
    return _mean_abs(y - loc, scale).mean(0) - spread / 2


def _mean_abs(loc: Tensor, scale: Tensor) -> Tensor:
    """Mean E|X| of X ~ N(loc, scale²)."""
    z = loc / scale
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    return scale * (2 * density + z * (2 * marginals.normal_cdf(z) - 1))


def _sample_crps(samples: Tensor, y: Tensor) -> Tensor:
    """Unbiased CRPS from k samples of each of S parts ``(k, S, ...)``, without pairing a sample with itself."""
    count, parts = samples.shape[:2]
    within = _sum_pairwise_distances(samples).sum(0)  # over ordered pairs within a part, summed over parts
    between = _sum_pairwise_distances(samples.flatten(0, 1)) - within
    spread = (between / count**2 + within / (count * (count - 1))) / parts**2
    return (samples - y).abs().mean((0, 1)) - spread / 2


def _sum_pairwise_distances(samples: Tensor) -> Tensor:
    """Sum of |x − x′| over ordered pairs along the first dimension, by sorting."""
    count = len(samples)
    weights = 2 * torch.arange(count, dtype=samples.dtype, device=samples.device) - count + 1
    return 2 * torch.tensordot(weights, samples.sort(0).values, dims=1)
