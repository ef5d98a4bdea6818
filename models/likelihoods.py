"""Likelihoods: modules ``outputs -> Distribution`` with batch shape ``(*draws, batch)``, in float32 or better."""

import math

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.distributions import Softmax


class Categorical(nn.Module):
    """One class per example; outputs are logits ``(*draws, batch, classes)``, labels integers ``(batch,)``."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the labels; the mask of tokens does not matter."""
        return Softmax(_precise(outputs))


class Bernoulli(nn.Module):
    """Several labels per example; outputs are logits ``(*draws, batch, labels)``, labels 0 or 1 in that shape."""

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the labels; the mask of tokens does not matter."""
        return dist.Bernoulli(logits=_precise(outputs)).to_event(1)


class Normal(nn.Module):
    """Regression with learned noise; outputs are means ``(*draws, batch, targets)``.

    Args:
        scale: initial standard deviation of the noise, in units of the targets.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the targets; the mask of tokens does not matter."""
        return dist.Normal(_precise(outputs), self.log_scale.exp()).to_event(1)


class TokenCategorical(nn.Module):
    """One class per token; outputs are logits ``(*draws, batch, tokens, classes)``, labels ``(batch, tokens)``.

    Padding counts nothing: its log probability is 0, whatever integer stands there as its label (−100, say).
    """

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of all labels of an example; without a mask all tokens are real."""
        tokens = Softmax(_precise(outputs))
        return (tokens if mask is None else _Masked(tokens, mask.expand(tokens.batch_shape))).to_event(1)


class _Masked(dist.MaskedDistribution):
    """A masked distribution that does not look at values where they do not count, not even to validate them."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value.where(self._mask, 0))


def _precise(outputs: Tensor) -> Tensor:
    return outputs if outputs.dtype == torch.float64 else outputs.float()
