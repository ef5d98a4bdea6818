"""Merges of the two branches of a KEP-SVGP layer (KEP-SVGP paper, eq. 19), on scores, before u is
applied."""

import torch
from torch import Tensor, nn

from probattn.attention.options import check_choice
from probattn.functional import kep_svgp


class Add(nn.Module):
    """F^e + F^r, for any number of tokens."""

    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        """Return the merged scores ``(..., H, N, s)`` of e and r of that shape."""
        return e + r


class Concat(nn.Module):
    """W₁ [F^e; F^r] with a W₁ shared by all heads, for a fixed number of tokens.

    Args:
        tokens: N.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(_fan_in_uniform(tokens, 2 * tokens))

    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        """Return the merged scores ``(..., H, N, s)`` of e and r of that shape."""
        return kep_svgp.merge_tokens(e, r, self.weights.to(e.dtype))


class ConcatLowRank(nn.Module):
    """A Bᵀ [F^e; F^r], linear in the fixed number of tokens.

    Args:
        tokens: N.
        rank: width of A and B.
    """

    decayed_parameters = ("a", "b")

    def __init__(self, tokens: int, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(_fan_in_uniform(tokens, rank))
        self.b = nn.Parameter(_fan_in_uniform(rank, 2 * tokens).mT.contiguous())

    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        """Return the merged scores ``(..., H, N, s)`` of e and r of that shape."""
        return kep_svgp.merge_tokens_lowrank(e, r, self.a.to(e.dtype), self.b.to(e.dtype))


def resolve(
    merge: str,
    tokens: int | None,
    rank: int,
) -> Add | Concat | ConcatLowRank:
    """Return the merge of that name.

    Raises:
        ValueError: an unknown name; weights over tokens without their number, or with fewer than
            ``rank``.
    """
    check_choice("merge", merge, ("add", "concat", "concat_lowrank"))
    if merge == "add":
        return Add()
    if tokens is None:
        raise ValueError(
            f'merge="{merge}" has weights over tokens: give tokens=N, or use merge="add"'
        )
    if rank > tokens:
        raise ValueError(
            f'merge="{merge}" needs a rank of at most the {tokens} tokens, got {rank}; '
            'or use merge="add"'
        )
    return Concat(tokens) if merge == "concat" else ConcatLowRank(tokens, rank)


def _fan_in_uniform(rows: int, columns: int) -> Tensor:
    """Return a uniform matrix with variance 1 / columns, which preserves the variance of a
    product."""
    bound = (3 / columns) ** 0.5
    return torch.empty(rows, columns).uniform_(-bound, bound)
