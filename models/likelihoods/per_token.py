"""Likelihoods with one label per token; padding contributes nothing."""

import pyro.distributions as dist
from torch import Tensor, nn

from probattn.models.likelihoods.classification import Categorical


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
        return Masked(tokens, mask.expand(tokens.batch_shape)).to_event(1)


class TokenCategorical(PerToken):
    """One class per token; outputs are logits ``(*draws, batch, tokens, classes)``, labels ``(batch, tokens)``."""

    def __init__(self) -> None:
        super().__init__(Categorical())


class Masked(dist.MaskedDistribution):
    """Masked distribution that ignores values at masked positions completely, argument validation included.

    Attributes:
        real: mask ``(*draws, batch, tokens)``, True at real tokens.
    """

    def __init__(self, base_dist: dist.TorchDistribution, mask: Tensor) -> None:
        super().__init__(base_dist, mask)
        self.real = mask

    def expand(self, batch_shape: tuple[int, ...], _instance: None = None) -> "Masked":
        """Return the same distribution with a larger batch shape."""
        return Masked(self.base_dist.expand(batch_shape), self.real.expand(batch_shape))

    def real_labels(self, labels: Tensor) -> Tensor:
        """Return the mask of one draw, to be broadcast against labels ``(batch, tokens, ...)``."""
        real = self.real.reshape(-1, *labels.shape[:2])[0]
        return real.reshape(real.shape + (1,) * (labels.dim() - 2))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, 0 at masked positions."""
        real = self.real[(..., *(None,) * len(self.event_shape))]
        return super().log_prob(value.where(real, 1))  # 1 is in the support of real, count and class distributions
