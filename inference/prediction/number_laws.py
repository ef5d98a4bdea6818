"""Predictive laws of numbers: an exact mixture of normal laws, and the law of samples.

Shapes: S components or samples, of numbers ``(n, ...)``; L levels.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pyro.distributions as dist
import torch
from pyro.ops.stats import crps_empirical
from torch import Tensor
from torch.distributions import Normal

from probattn.inference.prediction.mixture import (
    NUM_SAMPLES,
    SEED,
    device_of,
    innermost,
    values,
)
from probattn.threads import one_thread_at_a_time

BISECTIONS = 60


class NormalMixture(NamedTuple):
    """Equal mixture of S normal laws of each number.

    Args:
        loc, scale: means and standard deviations ``(S, n, ...)``, in float64.
    """

    loc: Tensor
    scale: Tensor

    def cdf(self, y: Tensor) -> Tensor:
        """Return P(Y ≤ y); accurate in the lower tail, where ``ndtr`` cancels to 0.

        Args:
            y: ``(..., n, ...)``; more dimensions on the left are further values.
        """
        z = (y.to(self.loc).unsqueeze(-self.loc.dim()) - self.loc) / self.scale
        return torch.special.erfc(-z / math.sqrt(2)).mean(-self.loc.dim()) / 2

    def crps(self, y: Tensor) -> Tensor:
        """Return E|Y − y| − ½ E|Y − Y′| (Grimit et al., 2006, eq. 3)."""
        error = _mean_abs(y.to(self.loc) - self.loc, self.scale).mean(0)  # E|Y − y|
        pairs = zip(self.loc, self.scale, strict=True)
        distances = (
            _mean_abs(mean - self.loc, (sd**2 + self.scale**2).sqrt()) for mean, sd in pairs
        )
        spread = sum(distance.mean(0) for distance in distances)  # S E|Y − Y′|
        return error - spread / (2 * len(self.loc))

    def quantiles(self, shares: Tensor) -> Tensor:
        """Return the quantiles ``(L, n, ...)`` at probabilities ``(L,)``, by bisection."""
        shares = shares.reshape(-1, *[1] * (self.loc.dim() - 1))
        # The mixture's quantile lies between those of its parts.
        ends = self.loc + self.scale * torch.special.ndtri(shares).unsqueeze(1)
        low = ends.amin(1)
        high = ends.amax(1)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            reached = self.cdf(middle) >= shares
            low = low.where(reached, middle)
            high = middle.where(reached, high)
        return (low + high) / 2


class Empirical(NamedTuple):
    """Law of samples of each number.

    Args:
        samples: ``(S, n, ...)`` in ascending order, in float64.
    """

    samples: Tensor

    def cdf(self, y: Tensor) -> Tensor:
        """Return the share of samples that are at most y ``(n, ...)``."""
        return (self.samples <= y.to(self.samples)).double().mean(0)

    def crps(self, y: Tensor) -> Tensor:
        """Return E|Y − y| − ½ E|Y − Y′|."""
        return crps_empirical(self.samples, y.to(self.samples))

    def quantiles(self, shares: Tensor) -> Tensor:
        """Return the quantiles ``(L, n, ...)`` at probabilities ``(L,)``."""
        return self.samples[(shares * len(self.samples)).ceil().long() - 1]


def _mean_abs(loc: Tensor, scale: Tensor) -> Tensor:
    """Mean E|X| of X ~ N(loc, scale²)."""
    z = loc / scale
    density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    return scale * 2 * density + loc * torch.special.erf(z / math.sqrt(2))


@one_thread_at_a_time
def law_of_numbers(
    components: Sequence[dist.TorchDistribution], device: torch.device
) -> NormalMixture | Empirical:
    """Return the law of the numbers of likelihoods ``(S, b)``: exact for normal ones.

    Others are sampled, :data:`NUM_SAMPLES` numbers or more, equally many per posterior sample. The
    samples have a fixed seed, and PyTorch's generators keep their states.
    """
    if isinstance(innermost(components[0]), Normal):
        loc = torch.cat([values(law, "mean") for law in components], 1)
        scale = torch.cat([values(law, "stddev") for law in components], 1)
        return NormalMixture(loc.double().to(device), scale.double().to(device))
    source = device_of(components[0])
    numbers = []
    with torch.random.fork_rng([source] if source.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(SEED)
        for law in components:
            samples = law.sample((math.ceil(NUM_SAMPLES / law.batch_shape[0]),))
            numbers.append(samples.flatten(0, 1).double())
    return Empirical(torch.cat(numbers, 1).to(device).sort(0).values)
