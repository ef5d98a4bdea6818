"""Likelihoods with one label per token; padding contributes nothing."""

import pyro.distributions as dist
from torch import Tensor, nn

from probattn.models.likelihoods.classification import Categorical
from probattn.pyro_compat import mask_of


class PerToken(nn.Module):
    """Apply a likelihood of examples to every token; outputs are ``(*draws, batch, tokens, ...)``, labels likewise.

    ``PerToken(Gaussian())`` takes outputs ``(*draws, batch, tokens, targets)`` and labels ``(batch, tokens, targets)``.
    Padding has log probability 0, whatever its outputs or labels (−100 or NaN, for example).

    Args:
        likelihood: a module ``outputs -> Distribution`` with batch shape ``(*draws, batch)``.
    """

    def __init__(self, likelihood: nn.Module) -> None:
        super().__init__()
        self.likelihood = likelihood

    @property
    def needs_labels(self) -> bool:
        """True if the likelihood of tokens is initialised from labels."""
        return getattr(self.likelihood, "needs_labels", False)

    def initialise(self, labels: Tensor) -> None:
        """Initialise the likelihood of tokens from the labels of real tokens ``(m, ...)``."""
        self.likelihood.initialise(labels)

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the joint distribution of an example's labels; without a mask all tokens are real."""
        if mask is None:
            mask = outputs.new_ones(outputs.shape[-3:-1]).bool()
        tokens = self.likelihood(outputs.where(mask.unsqueeze(-1), 0))
        return _Masked(tokens, mask.expand(tokens.batch_shape)).to_event(1)


class TokenCategorical(PerToken):
    """One class per token; outputs are logits ``(*draws, batch, tokens, classes)``, labels ``(batch, tokens)``."""

    def __init__(self) -> None:
        super().__init__(Categorical())


class _Masked(dist.MaskedDistribution):
    """Masked distribution that ignores values at masked positions completely, argument validation included."""

    def log_prob(self, value: Tensor) -> Tensor:
        real = mask_of(self)[(..., *(None,) * len(self.event_shape))]
        return super().log_prob(value.where(real, 1))  # 1 is in the support of real, count and class distributions
