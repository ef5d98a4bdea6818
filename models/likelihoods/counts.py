"""Likelihoods of counts."""

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from probattn.models.likelihoods.numerics import at_least_float32, inverse_softplus


class Poisson(nn.Module):
    """Counts whose variance is their mean; outputs are log rates ``(*draws, batch, targets)``."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the counts; the mask of tokens does not matter."""
        rate = at_least_float32(outputs).exp()
        return dist.Poisson(rate.clamp(min=torch.finfo(rate.dtype).tiny)).to_event(1)


class NegativeBinomial(nn.Module):
    """Overdispersed counts; outputs are log means ``(*draws, batch, targets)``.

    The variance is μ + μ²/r with a learned concentration r that all examples share (NB2; Cameron & Trivedi, 2013):
    r → ∞ is Poisson.

    Args:
        concentration: initial r, positive.

    Raises:
        ValueError: a concentration that is not positive.
    """

    def __init__(self, concentration: float = 1.0) -> None:
        super().__init__()
        if not concentration > 0:
            raise ValueError(f"concentration must be positive, got {concentration}")
        self.raw_concentration = nn.Parameter(inverse_softplus(torch.tensor(float(concentration))))

    @property
    def concentration(self) -> Tensor:
        """The number r ``()``."""
        return softplus(self.raw_concentration)

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the counts; the mask of tokens does not matter."""
        concentration = self.concentration
        logits = at_least_float32(outputs) - concentration.log()  # of one more count: log(μ/r)
        return dist.NegativeBinomial(concentration, logits=logits).to_event(1)
