"""Likelihoods of the real tokens of a padded batch, with the tokens as batch dimension."""

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from probattn.inference.prediction import marginals


def real_tokens(likelihood: Distribution, mask: Tensor) -> Distribution:
    """Return the likelihood of the m real tokens, of batch shape ``(S, m)``.

    Args:
        likelihood: masked likelihood of batch shape ``(S, b)``.
        mask: ``(b, tokens)``, True at the m real tokens.
    """
    masked, base = marginals.masked_part(likelihood), marginals.unwrap(likelihood)
    event = len(masked.event_shape)
    if isinstance(base, torch.distributions.Normal):  # metrics have closed forms for these classes
        return dist.Normal(base.loc[:, mask], base.scale[:, mask]).to_event(event)
    if isinstance(base, torch.distributions.Bernoulli):
        return dist.Bernoulli(logits=base.logits[:, mask]).to_event(event)
    return RealTokens(masked, mask)


class RealTokens(dist.TorchDistribution):
    """Entries of a distribution's batch at which a mask is True, in order: batch shape ``(S, m)``.

    Args:
        base: distribution of batch shape ``(S, b, tokens)``.
        mask: ``(b, tokens)``, True at the m real tokens.
    """

    arg_constraints = {}

    def __init__(self, base: Distribution, mask: Tensor) -> None:
        self.base_dist, self.mask = base, mask
        self.index = (..., mask, *(slice(None),) * len(base.event_shape))
        super().__init__((base.batch_shape[0], int(mask.sum())), base.event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Support of the base distribution."""
        return self.base_dist.support

    @property
    def mean(self) -> Tensor:
        """Means ``(S, m, *event)``."""
        return self.base_dist.mean[self.index]

    @property
    def variance(self) -> Tensor:
        """Variances ``(S, m, *event)``."""
        return self.base_dist.variance[self.index]

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draw samples ``(*sample_shape, S, m, *event)``."""
        return self.base_dist.sample(torch.Size(sample_shape))[self.index]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log densities ``(S, m)`` of values ``(m, *event)``, in nats."""
        return self.base_dist.log_prob(self.scatter(value))[..., self.mask]

    def scatter(self, value: Tensor) -> Tensor:
        """Pad values ``(..., m, *event)`` to ``(..., b, tokens, *event)`` with 1, which is in any support."""
        leading = value.shape[: value.dim() - 1 - len(self.event_shape)]
        padded = value.new_ones(*leading, *self.mask.shape, *self.event_shape)
        padded[self.index] = value
        return padded


@marginals.cdf.register
def _(likelihood: RealTokens, value: Tensor) -> Tensor:
    return marginals.cdf(likelihood.base_dist, likelihood.scatter(value))[likelihood.index]
