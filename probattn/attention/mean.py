"""Softmax attention as the mean of a Gaussian process, with the process's own queries and keys."""

import math

import torch
from torch import Tensor, nn

from probattn.attention.softmax import attend


class SoftmaxMean(nn.Module):
    """Softmax attention plus a Gaussian process: W_out softmax(Q Kᵀ / √d) V + b + a f, for given
    queries and keys.

    Parameter ``log_amplitude``: log a, a scalar.

    Args:
        dim: width of the tokens.
        bias: give the value map a bias.
        amplitude: initial a.
    """

    def __init__(self, dim: int, *, bias: bool, amplitude: float) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim, bias=bias)
        self.out = nn.Linear(dim, dim)
        self.log_amplitude = nn.Parameter(torch.tensor(math.log(amplitude)))

    def forward(
        self, f: Tensor, query_key: Tensor, x: Tensor, mask: Tensor | None, dropout: float
    ) -> Tensor:
        """Attend over the real tokens and add the process.

        Args:
            f: the process's output ``(*draws, ..., N, dim)``.
            query_key: queries and keys ``(2, ..., H, N, d)``.
            x: ``(..., N, dim)``, from which the values are computed.
            mask: ``(batch, tokens)``, True where there is a token.
            dropout: dropout rate of the attention probabilities.

        Returns:
            A tensor of f's shape.
        """
        value = self.value(x).unflatten(-1, (query_key.shape[-3], -1)).transpose(-3, -2)
        query, key = query_key
        attended = attend(query, key, value, mask, dropout=dropout)
        return self.out(attended.transpose(-3, -2).flatten(-2)) + self.log_amplitude.exp() * f
