"""Likelihoods: modules ``outputs -> Distribution`` with batch shape ``(*draws, batch)``, in float32
or better; those of classes and tokens, and those of numbers by their names."""

from collections.abc import Sequence
from typing import cast

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad, softplus

from probattn.functional.dtypes import at_least_float32
from probattn.models.label_distributions import (
    BernoulliOfAnyDtype,
    CategoricalWithEnergy,
    Likelihood,
    Masked,
    OrderedCategorical,
)
from probattn.models.number_likelihoods import (
    Gaussian,
    HeteroscedasticGaussian,
    NegativeBinomial,
    Poisson,
    Scaled,
    StudentT,
    softplus_inverse,
)

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "NegativeBinomial",
    "Ordinal",
    "PerToken",
    "Poisson",
    "StudentT",
    "TokenCategorical",
]

Weights = Tensor | Sequence[float] | None


class Categorical(Likelihood):
    """One class per example; outputs are logits ``(*draws, batch, classes)``, labels integers
    ``(batch,)``.

    With class weights the log-likelihood of training is Σ_i w_{y_i} log p(y_i | x_i): an example of
    class c counts like w_c equal examples, against the same prior. Weights are used as they are;
    with scikit-learn's ``compute_class_weight("balanced", ...)`` they sum to the number of
    examples, which keeps the balance of likelihood and KL. Predictions, their log densities and
    metrics have no weights.

    Args:
        class_weights: a positive weight per class, or None.

    Raises:
        ValueError: weights that are not positive and finite; in the forward pass, another number of
            classes.
    """

    def __init__(self, class_weights: Weights = None) -> None:
        super().__init__()
        buffer = None
        if class_weights is not None:
            weights = torch.as_tensor(class_weights, dtype=torch.get_default_dtype())
            if weights.dim() != 1 or not (weights.isfinite() & (weights > 0)).all():
                raise ValueError(
                    f"class_weights must be positive numbers, one per class, got {class_weights}"
                )
            buffer = nn.Buffer(weights)
        self.class_weights = buffer

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the labels."""
        classes = outputs.shape[-1]
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise ValueError(
                f"{len(self.class_weights)} class_weights for outputs of {classes} classes"
            )
        return CategoricalWithEnergy(outputs, self.class_weights)


class Bernoulli(Likelihood):
    """Multi-label classification; outputs are logits ``(*draws, batch, labels)``, labels 0 or 1 in
    that shape."""

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the labels."""
        return BernoulliOfAnyDtype(logits=outputs).to_event(1)


class Ordinal(Likelihood):
    """One of several ordered classes per example: the proportional-odds (cumulative logit) model of
    McCullagh (1980).

    P(y ≤ k) = σ(c_k − f), with the location f the network's single output ``(*draws, batch, 1)``
    and learned cutpoints c_0 < … < c_{K−2} shared by all examples. Labels are integers ``(batch,)``
    from 0 to K − 1 in their order.

    Args:
        classes: K, at least 2. At f = 0 the initial cutpoints assign each class the same
            probability.

    Raises:
        ValueError: fewer than two classes; in the forward pass, more than one output per example.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"an ordinal likelihood needs at least two classes, got {classes}")
        cutpoints = (torch.arange(1, classes) / classes).logit()
        gaps = softplus_inverse(cutpoints.diff())
        self.raw_cutpoints = nn.Parameter(torch.cat([cutpoints[:1], gaps]))

    @property
    def cutpoints(self) -> Tensor:
        """Cutpoints c in increasing order, ``(classes − 1,)``."""
        raw = at_least_float32(self.raw_cutpoints)
        return torch.cat([raw[:1], softplus(raw[1:])]).cumsum(0)

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the labels."""
        if outputs.shape[-1] != 1:
            raise ValueError(
                f"an ordinal likelihood takes one output per example, got {outputs.shape[-1]}"
            )
        upper = self.cutpoints - outputs
        # σ(a) − σ(b) = σ(a) σ(−b) (1 − exp(b − a)): no factor suffers from cancellation.
        gap = (-torch.expm1(-softplus(at_least_float32(self.raw_cutpoints[1:])))).log()
        log_probs = pad(logsigmoid(upper), (0, 1)) + pad(logsigmoid(-upper), (1, 0))
        return OrderedCategorical(logits=log_probs + pad(gap, (1, 1)))


class PerToken(nn.Module):
    """Apply a likelihood of examples to every token; outputs are ``(*draws, batch, tokens, ...)``,
    labels likewise.

    ``PerToken(Gaussian())`` takes outputs ``(*draws, batch, tokens, targets)`` and labels
    ``(batch, tokens, targets)``. Padding has log probability 0, whatever its outputs or labels
    (−100 or NaN, for example).

    Args:
        likelihood: a module ``outputs -> Distribution`` with batch shape ``(*draws, batch)``.
    """

    def __init__(self, likelihood: nn.Module) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.needs_labels = getattr(likelihood, "needs_labels", False)

    def initialise(self, labels: Tensor) -> None:
        """Initialise the likelihood of tokens from the labels of real tokens ``(m, ...)``."""
        cast(Scaled, self.likelihood).initialise(labels)

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the joint distribution of an example's labels; without a mask all tokens are
        real."""
        if mask is None:
            mask = outputs.new_ones(outputs.shape[-3:-1]).bool()
        tokens = self.likelihood(outputs.where(mask.unsqueeze(-1), 0))
        return Masked(tokens, mask.expand(tokens.batch_shape)).to_event(1)


class TokenCategorical(PerToken):
    """One class per token; outputs are logits ``(*draws, batch, tokens, classes)``, labels
    ``(batch, tokens)``."""

    def __init__(self) -> None:
        super().__init__(Categorical())
