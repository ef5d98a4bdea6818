"""Likelihoods for classification: one class, several binary labels, or ordered classes per example."""

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions.transforms import SoftplusTransform
from torch.nn.functional import logsigmoid, pad, softplus

from probattn.functional.dtypes import at_least_float32


class Categorical(nn.Module):
    """One class per example; outputs are logits ``(*draws, batch, classes)``, labels integers ``(batch,)``.

    With class weights the log-likelihood of training is Σ_i w_{y_i} log p(y_i | x_i): an example of class c counts like
    w_c equal examples, against the same prior. Weights are used as they are; with scikit-learn's
    ``compute_class_weight("balanced", ...)`` they sum to the number of examples, which keeps the balance of likelihood
    and KL. Predictions, their log densities and metrics have no weights.

    Args:
        class_weights: a positive weight per class, or None.

    Raises:
        ValueError: weights that are not positive and finite; in the forward pass, another number of classes.
    """

    class_weights: Tensor | None

    def __init__(self, class_weights: Tensor | Sequence[float] | None = None) -> None:
        super().__init__()
        if class_weights is not None:
            class_weights = torch.as_tensor(class_weights, dtype=torch.get_default_dtype())
            if class_weights.dim() != 1 or not (class_weights.isfinite() & (class_weights > 0)).all():
                raise ValueError(f"class_weights must be positive numbers, one per class, got {class_weights.tolist()}")
        self.register_buffer("class_weights", class_weights)

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the labels; the token mask is ignored."""
        logits = at_least_float32(outputs)
        if self.class_weights is not None and logits.shape[-1] != len(self.class_weights):
            raise ValueError(f"{len(self.class_weights)} class_weights for outputs of {logits.shape[-1]} classes")
        return CategoricalWithEnergy(logits, self.class_weights)


class Bernoulli(nn.Module):
    """Multi-label classification; outputs are logits ``(*draws, batch, labels)``, labels 0 or 1 in that shape."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the labels; the token mask is ignored."""
        return _BernoulliOfAnyDtype(logits=at_least_float32(outputs)).to_event(1)


class Ordinal(nn.Module):
    """One of several ordered classes per example: the proportional-odds (cumulative logit) model of McCullagh (1980).

    P(y ≤ k) = σ(c_k − f), with the location f the network's single output ``(*draws, batch, 1)`` and learned cutpoints
    c_0 < … < c_{K−2} shared by all examples. Labels are integers ``(batch,)`` from 0 to K − 1 in their order.

    Args:
        classes: K, at least 2. At f = 0 the initial cutpoints assign each class the same probability.

    Raises:
        ValueError: fewer than two classes; in the forward pass, more than one output per example.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"an ordinal likelihood needs at least two classes, got {classes}")
        cutpoints = (torch.arange(1, classes) / classes).logit()
        self.raw_cutpoints = nn.Parameter(torch.cat([cutpoints[:1], SoftplusTransform().inv(cutpoints.diff())]))

    @property
    def cutpoints(self) -> Tensor:
        """Cutpoints c in increasing order, ``(classes − 1,)``."""
        raw = at_least_float32(self.raw_cutpoints)
        return torch.cat([raw[:1], softplus(raw[1:])]).cumsum(0)

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the labels; the token mask is ignored."""
        if outputs.shape[-1] != 1:
            raise ValueError(f"an ordinal likelihood takes one output per example, got {outputs.shape[-1]}")
        upper = self.cutpoints - at_least_float32(outputs)
        # σ(a) − σ(b) = σ(a) σ(−b) (1 − exp(b − a)): no factor suffers from cancellation.
        gap = (-torch.expm1(-softplus(at_least_float32(self.raw_cutpoints[1:])))).log()
        log_probs = pad(logsigmoid(upper), (0, 1)) + pad(logsigmoid(-upper), (1, 0))
        return OrderedCategorical(logits=log_probs + pad(gap, (1, 1)))


class _BernoulliOfAnyDtype(dist.Bernoulli):
    """Bernoulli distribution that accepts labels of any dtype, as categorical and count distributions do."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value.to(self.logits.dtype))


class CategoricalWithEnergy(dist.Categorical):
    """Categorical distribution that keeps its logits as they are before their normalisation, for their free energy.

    With class weights the log density is multiplied by the weight of the class, and ``exp(log_prob)`` does not sum to
    1. Probabilities, entropy and samples are those without weights.

    Args:
        logits: ``(..., classes)``, normalised or not.
        class_weights: ``(classes,)``, positive, or None.

    Attributes:
        given_logits: ``logits``.
    """

    class_weights: Tensor | None = None

    def __init__(
        self, logits: Tensor, class_weights: Tensor | None = None, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(logits=logits, validate_args=validate_args)
        self.given_logits, self.class_weights = logits, class_weights

    @property
    def energy(self) -> Tensor:
        """Free energy −log Σ_c exp(logit_c), of the batch shape (Liu et al., 2020, eq. 4)."""
        return -self.given_logits.logsumexp(-1)

    def expand(self, batch_shape: torch.Size, _instance: None = None) -> "CategoricalWithEnergy":
        """Return the same distribution with another batch shape."""
        new = super().expand(batch_shape, self.__new__(type(self)))
        new.given_logits, new.class_weights = self.given_logits.expand(*batch_shape, -1), self.class_weights
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Return w_value log p(value), in nats; without weights log p(value)."""
        log_prob = super().log_prob(value)
        return log_prob if self.class_weights is None else log_prob * self.class_weights[value.long()]


class OrderedCategorical(dist.Categorical):
    """Categorical distribution of ordered classes, for which a miss by one is better than a miss by two."""

    is_ordered = True
