"""Distributions of classes: with the energy of their logits, with class weights, ordered."""

import pyro.distributions as dist
import torch
from torch import Tensor


class CategoricalWithEnergy(dist.Categorical):
    """Categorical distribution that keeps its logits as they are before their normalisation, for their free energy.

    Args:
        logits: ``(..., classes)``, normalised or not.

    Attributes:
        given_logits: ``logits``.
    """

    def __init__(self, logits: Tensor, *, validate_args: bool | None = None) -> None:
        super().__init__(logits=logits, validate_args=validate_args)
        self.given_logits = logits

    @property
    def energy(self) -> Tensor:
        """Free energy −log Σ_c exp(logit_c), of the batch shape (Liu et al., 2020, eq. 4)."""
        return -self.given_logits.logsumexp(-1)

    def expand(
        self, batch_shape: torch.Size, _instance: "CategoricalWithEnergy | None" = None
    ) -> "CategoricalWithEnergy":
        """Return the same distribution with another batch shape."""
        new = super().expand(batch_shape, self.__new__(type(self)) if _instance is None else _instance)
        new.given_logits = self.given_logits.expand(*batch_shape, -1)
        return new


class WeightedCategorical(CategoricalWithEnergy):
    """Categorical distribution whose log density is multiplied by a weight of the class.

    Probabilities, entropy and samples are those without weights; ``exp(log_prob)`` does not sum to 1.

    Args:
        logits: ``(..., classes)``, normalised or not.
        class_weights: ``(classes,)``, positive.
    """

    def __init__(self, logits: Tensor, class_weights: Tensor, *, validate_args: bool | None = None) -> None:
        super().__init__(logits, validate_args=validate_args)
        self.class_weights = class_weights.expand(logits.shape)

    def expand(self, batch_shape: torch.Size, _instance: "WeightedCategorical | None" = None) -> "WeightedCategorical":
        """Return the same distribution with another batch shape."""
        new = super().expand(batch_shape, _instance)
        new.class_weights = self.class_weights.expand(*batch_shape, -1)
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Return w_value log p(value), in nats."""
        log_prob = super().log_prob(value)
        weights = self.class_weights.expand(*log_prob.shape, -1)
        return log_prob * weights.gather(-1, value.long().expand(log_prob.shape).unsqueeze(-1)).squeeze(-1)


class OrderedCategorical(dist.Categorical):
    """Categorical distribution of ordered classes, for which a miss by one is better than a miss by two."""

    is_ordered = True
