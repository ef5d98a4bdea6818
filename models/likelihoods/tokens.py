"""Likelihoods of a label per token, where padding counts nothing."""

import pyro.distributions as dist
from torch import Tensor, nn

from probattn.models.likelihoods.classes import Categorical
from probattn.pyro_compat import mask_of


class PerToken(nn.Module):
    """A likelihood of examples for every token; outputs are ``(*draws, batch, tokens, ...)``, labels likewise.

    ``PerToken(Gaussian())`` takes outputs ``(*draws, batch, tokens, targets)`` and labels ``(batch, tokens, targets)``.
    Padding counts nothing: its log probability is 0, whatever stands there as its output or label (−100 or NaN, say).

    Args:
        likelihood: a module ``outputs -> Distribution`` with batch shape ``(*draws, batch)``, of this library or yours.
    """

    def __init__(self, likelihood: nn.Module) -> None:
        super().__init__()
        self.likelihood = likelihood

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of all labels of an example; without a mask all tokens are real."""
        if mask is None:
            mask = outputs.new_ones(outputs.shape[-3:-1]).bool()
        tokens = self.likelihood(outputs.where(mask.unsqueeze(-1), 0))
        return _Masked(tokens, mask.expand(tokens.batch_shape)).to_event(1)


class TokenCategorical(PerToken):
    """One class per token; outputs are logits ``(*draws, batch, tokens, classes)``, labels ``(batch, tokens)``."""

    def __init__(self) -> None:
        super().__init__(Categorical())


class _Masked(dist.MaskedDistribution):
    """A masked distribution that does not look at values where they do not count, not even to validate them."""

    def log_prob(self, value: Tensor) -> Tensor:
        counted = mask_of(self)[(..., *(None,) * len(self.event_shape))]
        return super().log_prob(value.where(counted, 1))  # which is in the support of numbers, counts and classes
