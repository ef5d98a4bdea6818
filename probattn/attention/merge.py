"""Merges of the two branches of a KEP-SVGP layer (KEP-SVGP paper, eq. 19), on scores, before u is
applied."""

import torch
from torch import Tensor, nn

from probattn.attention.options import check_choice


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
        # W₁ acts on tokens, u on columns: the scores are merged in place of the outputs.
        for_e, for_r = self.weights.to(e.dtype).chunk(2, dim=-1)
        return (e.mT @ for_e.mT + r.mT @ for_r.mT).mT


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
        for_e, for_r = self.b.to(e.dtype).chunk(2)
        # Bᵀ [E; R], transposed, (..., H, s, s)
        inner = e.mT @ for_e + r.mT @ for_r
        return (inner @ self.a.to(e.dtype).mT).mT


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
