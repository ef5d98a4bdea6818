"""Likelihoods of classes and of binary labels."""

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad, softplus

from probattn.distributions import CategoricalWithEnergy, OrderedCategorical
from probattn.models.likelihoods.numerics import at_least_float32, inverse_softplus


class Categorical(nn.Module):
    """One class per example; outputs are logits ``(*draws, batch, classes)``, labels integers ``(batch,)``."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the labels; the mask of tokens does not matter."""
        return CategoricalWithEnergy(at_least_float32(outputs))


class Bernoulli(nn.Module):
    """Several labels per example; outputs are logits ``(*draws, batch, labels)``, labels 0 or 1 in that shape."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the labels; the mask of tokens does not matter."""
        return _Binary(logits=at_least_float32(outputs)).to_event(1)


class Ordinal(nn.Module):
    """One of several ordered classes per example: the proportional-odds (cumulative logit) model of McCullagh (1980).

    P(y ≤ k) = σ(c_k − f), with the location f the network's one output ``(*draws, batch, 1)`` and learned cutpoints
    c_0 < … < c_{K−2} that all examples share. Labels are integers ``(batch,)`` from 0 to K − 1 in their order.

    Args:
        classes: K, two or more. At f = 0 the initial cutpoints give each class the same probability.

    Raises:
        ValueError: fewer than two classes; in the forward pass, more than one output per example.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"an ordinal likelihood needs two classes or more, got {classes}")
        cutpoints = (torch.arange(1, classes) / classes).logit()
        self.raw_cutpoints = nn.Parameter(torch.cat([cutpoints[:1], inverse_softplus(cutpoints.diff())]))

    @property
    def cutpoints(self) -> Tensor:
        """c, increasing, ``(classes − 1,)``."""
        return torch.cat([self.raw_cutpoints[:1], softplus(self.raw_cutpoints[1:])]).cumsum(0)

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the labels; the mask of tokens does not matter."""
        if outputs.shape[-1] != 1:
            raise ValueError(f"an ordinal likelihood takes one output per example, got {outputs.shape[-1]}")
        upper = self.cutpoints - at_least_float32(outputs)
        # σ(a) − σ(b) = σ(a) σ(−b) (1 − exp(b − a)), of which no factor cancels.
        gap = (-torch.expm1(-softplus(self.raw_cutpoints[1:]))).log()
        log_probs = pad(logsigmoid(upper), (0, 1)) + pad(logsigmoid(-upper), (1, 0))
        return OrderedCategorical(logits=log_probs + pad(gap, (1, 1)))


class _Binary(dist.Bernoulli):
    """A Bernoulli distribution that takes labels of any dtype, as counts and classes do."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value.to(self.logits.dtype))
