"""Softmax attention: the deterministic baseline, and the mean of a Gaussian process."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.attention.options import dropout_rate


class SoftmaxAttention(ProbabilisticAttention):
    """Multi-head softmax attention with scale 1/√(head width) (KEP-SVGP paper, eqs. 8-9). It has no
    latent sites.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        bias: give query, key and value a bias.
        dropout: dropout rate of attention probabilities in training, in [0, 1).

    Raises:
        ValueError: a dropout rate out of bounds.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, heads)
        self.dropout = dropout_rate(dropout)
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=bias)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend over the real tokens.

        Args:
            x: ``(*draws, batch, tokens, dim)``.
            mask: ``(batch, tokens)``, True where there is a token.

        Returns:
            A tensor of x's shape.
        """
        x = self.checked(x, mask)
        rate = self.dropout if self.training else 0.0
        query, key, value = self.split_heads(self.query_key_value(x), 3)
        return self.out(self.join_heads(attend(query, key, value, mask, dropout=rate)))

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return softmax probabilities ``(..., H, N, N)``, zero in the columns of padded keys."""
        query, key, _ = self.split_heads(self.query_key_value(self.checked(x, mask)), 3)
        score = query @ key.mT / self.head_dim**0.5
        if mask is not None:
            score = score.where(mask[:, None, None, :], -torch.inf)
        return score.softmax(-1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(Q Kᵀ / √d) V over the real tokens.

    Args:
        query, key, value: ``(*draws, batch, H, N, d)``.
        mask: ``(batch, N)``, True where there is a token.
        dropout: dropout rate of the probabilities.

    Returns:
        ``(*draws, batch, H, N, d)``.
    """
    if mask is not None:
        mask = mask.expand(*query.shape[:-3], -1).reshape(-1, 1, 1, mask.shape[-1])
    shape = query.shape
    if query.dim() > 4:
        query, key, value = (projected.flatten(0, -4) for projected in (query, key, value))
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return attended.view(shape)


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
        self,
        f: Tensor,
        query_key: Tensor,
        x: Tensor,
        mask: Tensor | None,
        dropout: float,
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
