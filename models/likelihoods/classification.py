"""Likelihoods for classification: one class, several binary labels, or ordered classes per example."""

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions.transforms import SoftplusTransform
from torch.nn.functional import logsigmoid, pad, softplus

from probattn.distributions import CategoricalWithEnergy, OrderedCategorical
from probattn.functional.dtypes import at_least_float32


class Categorical(nn.Module):
    """One class per example; outputs are logits ``(*draws, batch, classes)``, labels integers ``(batch,)``."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the labels; the token mask is ignored."""
        return CategoricalWithEnergy(at_least_float32(outputs))


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
