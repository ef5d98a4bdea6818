"""Likelihoods for counts."""

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions.transforms import SoftplusTransform
from torch.nn.functional import softplus

from probattn.functional.dtypes import at_least_float32


class Poisson(nn.Module):
    """Counts with variance equal to their mean; outputs are log rates ``(*draws, batch, targets)``."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the counts; the token mask is ignored."""
        rate = at_least_float32(outputs).exp()
        return dist.Poisson(rate.clamp(min=torch.finfo(rate.dtype).tiny)).to_event(1)


class NegativeBinomial(nn.Module):
    """Overdispersed counts; outputs are log means ``(*draws, batch, targets)``.

    The variance is μ + μ²/r with a learned concentration r shared by all examples (NB2; Cameron & Trivedi, 2013); the
    limit r → ∞ is Poisson.

    Args:
        concentration: initial r, positive.

    Raises:
        ValueError: a concentration that is not positive.
    """

    def __init__(self, concentration: float = 1.0) -> None:
        super().__init__()
        if not concentration > 0:
            raise ValueError(f"concentration must be positive, got {concentration}")
        self.raw_concentration = nn.Parameter(SoftplusTransform().inv(torch.tensor(float(concentration))))

    @property
    def concentration(self) -> Tensor:
        """Concentration r, a scalar tensor."""
        return softplus(at_least_float32(self.raw_concentration))

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the counts; the token mask is ignored."""
        concentration = self.concentration
        logits = at_least_float32(outputs) - concentration.log()  # log(μ/r), the log odds of one more count
        return dist.NegativeBinomial(concentration, logits=logits).to_event(1)
