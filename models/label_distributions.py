"""Distributions of labels, with what predictions and padding need beside the density, and the base
of what makes them of outputs."""

from collections.abc import Sequence

import pyro.distributions as dist
from torch import Tensor, nn

from probattn.functional.dtypes import at_least_float32


class BernoulliOfAnyDtype(dist.Bernoulli):
    """Bernoulli distribution that accepts labels of any dtype, as categorical and count
    distributions do."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density."""
        return super().log_prob(value.to(self.logits.dtype))


class CategoricalWithEnergy(dist.Categorical):
    """Categorical distribution that keeps its logits as they are before their normalisation, for
    their free energy.

    With class weights the log density is multiplied by the weight of the class, and
    ``exp(log_prob)`` does not sum to
    1. Probabilities, entropy and samples are those without weights.

    Args:
        logits: ``(..., classes)``, normalised or not.
        class_weights: ``(classes,)``, positive, or None.

    Attributes:
        given_logits: ``logits``.
    """

    # Also of copies without the attribute, as predictions make them
    class_weights: Tensor | None = None

    def __init__(self, logits: Tensor, class_weights: Tensor | None = None) -> None:
        super().__init__(logits=logits)
        self.given_logits = logits
        self.class_weights = class_weights

    @property
    def energy(self) -> Tensor:
        """Free energy −log Σ_c exp(logit_c), of the batch shape (Liu et al., 2020, eq. 4)."""
        return -self.given_logits.logsumexp(-1)

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "CategoricalWithEnergy":
        """Return the same distribution with another batch shape."""
        new = super().expand(batch_shape, self.__new__(type(self)))
        new.given_logits = self.given_logits.expand(*batch_shape, -1)
        new.class_weights = self.class_weights
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Return w_value log p(value), in nats; without weights log p(value)."""
        log_prob = super().log_prob(value)
        if self.class_weights is None:
            return log_prob
        return log_prob * self.class_weights[value.long()]


class OrderedCategorical(dist.Categorical):
    """Categorical distribution of ordered classes, for which a miss by one is better than a miss by
    two."""

    is_ordered = True


class Masked(dist.MaskedDistribution):
    """Masked distribution that ignores values at masked positions completely, argument validation
    included.

    Attributes:
        real: mask ``(*draws, batch, tokens)``, True at real tokens.
    """

    def __init__(self, base_dist: dist.TorchDistribution, mask: Tensor) -> None:
        super().__init__(base_dist, mask)
        self.real = mask

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "Masked":
        """Return the same distribution with a larger batch shape."""
        return Masked(self.base_dist.expand(batch_shape), self.real.expand(batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, 0 at masked positions."""
        real = self.real[(..., *(None,) * len(self.event_shape))]
        # 1 is in the support of real, count and class distributions.
        return super().log_prob(value.where(real, 1))


class Likelihood(nn.Module):
    """Base of likelihoods of examples: a subclass defines :meth:`distribution`."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the labels; the token mask is ignored."""
        return self.distribution(at_least_float32(outputs))

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the labels, of outputs in float32 or better."""
        raise NotImplementedError
