"""The posterior predictive of numbers as an equal mixture of the S draws' likelihoods.

A component is the likelihood of some examples, of batch shape ``(S, b)`` and event shape ``(*event)``. All functions
look at one component and at each of its scalars by itself, in float64, and give ``(b, *event)``. Where no distribution
function is known, they count :data:`DRAWS` draws of the mixture, from PyTorch's global generator.
"""

import math

import torch
from torch import Tensor
from torch.distributions import Distribution

from probattn.inference.prediction import marginals
from probattn.inference.prediction.root_finding import bracket, first_integer, root

DRAWS, CRPS_DRAWS = 1000, 200
"""Draws of the mixture, all of its parts together, where there is no closed form."""


def sample(component: Distribution, count: int) -> Tensor:
    """Draws ``(S · ⌈count / S⌉, b, *event)`` of the mixture, equally many of each of its parts."""
    return _stratified(component, count).flatten(0, 1)


def cdf(component: Distribution, value: Tensor, *, below: bool = False) -> Tensor:
    """P(Y ≤ value), or P(Y < value), of values ``(..., b, *event)``, in that shape."""
    value = value.double()
    try:
        return _exact_cdf(component, value - 1 if below and marginals.is_discrete(component) else value)
    except NotImplementedError:
        draws = sample(component, DRAWS)
        flat = value.reshape(-1, *draws.shape[1:])
        shares = [(draws < each if below else draws <= each).double().mean(0) for each in flat]
        return torch.stack(shares).reshape(value.shape)


def quantiles(component: Distribution, levels: Tensor) -> Tensor:
    """The smallest y with P(Y ≤ y) ≥ level for each of levels ``(L,)`` between 0 and 1, ``(L, b, *event)``.

    Of real numbers to 9 digits.
    """
    levels = levels.double()
    try:
        return _by_root(component, levels.reshape(-1, *(1,) * _inner(component)))
    except NotImplementedError:
        draws = sample(component, DRAWS).sort(0).values
        return draws[(levels * len(draws)).ceil().long().clamp(min=1).cpu() - 1]


def crps(component: Distribution, y: Tensor) -> Tensor:
    """Continuous ranked probability score E|Y − y| − ½ E|Y − Y′| of labels ``(b, *event)``, in their units.

    Of Gaussian parts exact (Grimit et al., 2006, eq. 3), of others unbiased over :data:`CRPS_DRAWS` draws; NaN where
    a part has no mean.
    """
    y = y.double()
    base = marginals.unwrap(component)
    if isinstance(base, torch.distributions.Normal):
        shape = component.batch_shape + component.event_shape
        return _gaussian_crps(base.loc.double().expand(shape), base.scale.double().expand(shape), y)
    draws = _stratified(component, CRPS_DRAWS)
    mean, _ = marginals.moments(component)
    return _energy_score(draws, y).where(mean.isfinite().all(0), torch.nan)


def _inner(component: Distribution) -> int:
    """Number of dimensions behind that of the draws."""
    return len(component.batch_shape) - 1 + len(component.event_shape)


def _stratified(component: Distribution, count: int) -> Tensor:
    """Draws ``(k, S, b, *event)``, k ≥ 2 of each part."""
    with torch.no_grad():
        return component.sample((max(2, math.ceil(count / component.batch_shape[0])),)).double()


def _exact_cdf(component: Distribution, value: Tensor) -> Tensor:
    draws = -1 - _inner(component)
    return marginals.cdf(component, value.unsqueeze(draws)).mean(draws)


def _by_root(component: Distribution, levels: Tensor) -> Tensor:
    """Quantiles from the distribution function, started one standard deviation around the mean where they exist."""
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
    """Of means and standard deviations ``(S, ...)``."""
    pairs = zip(loc, scale, strict=True)
    spread = torch.stack([_mean_abs(each - loc, (sd**2 + scale**2).sqrt()).mean(0) for each, sd in pairs]).mean(0)
    return _mean_abs(y - loc, scale).mean(0) - spread / 2


def _mean_abs(loc: Tensor, scale: Tensor) -> Tensor:
    """E|X| of X ~ N(loc, scale²)."""
    z = loc / scale
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    return scale * (2 * density + z * (2 * marginals.normal_cdf(z) - 1))


def _energy_score(draws: Tensor, y: Tensor) -> Tensor:
    """Unbiased from k draws of each of S parts ``(k, S, ...)``: pairs of a part are of different draws."""
    count, parts = draws.shape[:2]
    within = _pairs(draws).sum(0)  # over all ordered pairs of a part, summed over parts
    between = _pairs(draws.flatten(0, 1)) - within
    spread = (between / count**2 + within / (count * (count - 1))) / parts**2
    return (draws - y).abs().mean((0, 1)) - spread / 2


def _pairs(draws: Tensor) -> Tensor:
    """Σ over ordered pairs of |x − x′| along the first dimension, by sorting."""
    count = len(draws)
    weights = 2 * torch.arange(count, dtype=draws.dtype, device=draws.device) - count + 1
    return 2 * torch.tensordot(weights, draws.sort(0).values, dims=1)
