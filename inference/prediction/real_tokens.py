"""The real tokens of a likelihood as a batch dimension of their own, without padding."""

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from probattn.inference.prediction import marginals


def real_tokens(likelihood: Distribution, mask: Tensor) -> Distribution:
    """The likelihood of the real tokens, of batch shape ``(S, m)``.

    Args:
        likelihood: a masked one of batch shape ``(S, b)``.
        mask: ``(b, tokens)``, of which m are True.
    """
    masked, base = marginals.masked_part(likelihood), marginals.unwrap(likelihood)
    event = len(masked.event_shape)
    if isinstance(base, torch.distributions.Normal):  # these stay what they are, for their own scores
        return dist.Normal(base.loc[:, mask], base.scale[:, mask]).to_event(event)
    if isinstance(base, torch.distributions.Bernoulli):
        return dist.Bernoulli(logits=base.logits[:, mask]).to_event(event)
    return RealTokens(masked, mask)


class RealTokens(dist.TorchDistribution):
    """The entries of a distribution's batch at which a mask is True, in their order.

    Args:
        base: of batch shape ``(S, b, tokens)``.
        mask: ``(b, tokens)``, of which m are True: the batch shape becomes ``(S, m)``.
    """

    arg_constraints = {}

    def __init__(self, base: Distribution, mask: Tensor) -> None:
        self.base_dist, self.chosen = base, (..., mask, *(slice(None),) * len(base.event_shape))
        self.mask = mask
        super().__init__((base.batch_shape[0], int(mask.sum())), base.event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The base's."""
        return self.base_dist.support

    @property
    def mean(self) -> Tensor:
        """The mean of each token."""
        return self.base_dist.mean[self.chosen]

    @property
    def variance(self) -> Tensor:
        """The variance of each token."""
        return self.base_dist.variance[self.chosen]

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws ``(*sample_shape, S, m, *event)``."""
        return self.base_dist.sample(torch.Size(sample_shape))[self.chosen]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density in nats ``(S, m)`` of values ``(m, *event)``."""
        return self.base_dist.log_prob(self.at_tokens(value))[..., self.mask]

    def at_tokens(self, value: Tensor) -> Tensor:
        """Values ``(..., m, *event)`` at their tokens, and 1 at padding: in the support of numbers and counts."""
        behind = len(self.event_shape)
        whole = value.new_ones(*value.shape[: value.dim() - 1 - behind], *self.mask.shape, *self.event_shape)
        whole[self.chosen] = value
        return whole


@marginals.cdf.register
def _(likelihood: RealTokens, value: Tensor) -> Tensor:
    return marginals.cdf(likelihood.base_dist, likelihood.at_tokens(value))[likelihood.chosen]
