"""KSVD projection weights W_e and W_r (KEP-SVGP paper, section 3.2).

A projection is called as ``projection(x, mask, query_key)``, with tokens ``(..., N, H · d)``, their
mask, and queries and keys ``(2, ..., H, N, d)``.
"""

import torch
from torch import Tensor, nn

from probattn.attention.options import check_choice
from probattn.functional import dtypes, ksvd, subspace


class PlainProjection(nn.Module):
    """W_e and W_r as parameters of each head, the same for every input.

    Args:
        heads: number of heads H.
        head_dim: width d of a head.
        rank: s.
    """

    decayed_parameters = ("w_e", "w_r")

    def __init__(self, heads: int, head_dim: int, rank: int) -> None:
        super().__init__()
        self.w_e = _orthogonal(heads, head_dim, rank)
        self.w_r = _orthogonal(heads, head_dim, rank)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        query_key: Tensor,
    ) -> Tensor:
        """Return W_e and W_r, ``(2, ..., H, d, s)`` with ones for the leading dimensions of x
        ``(..., N, H · d)``."""
        leading = (1,) * (x.dim() - 2)
        return torch.stack((self.w_e, self.w_r)).view(2, *leading, *self.w_e.shape)


class DataProjection(nn.Module):
    """Data-dependent W_{e|X} = f(X)ᵀ W_e, with evenly spaced rows f(X) of each head's slice of X,
    as in the papers.

    Args:
        heads: number of heads H.
        head_dim: width d of a head.
        rank: s.
        rows: maximum number of rows of f(X).
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        rank: int,
        *,
        rows: int,
    ) -> None:
        super().__init__()
        self.rows = rows
        w_e = _orthogonal(heads, rows, rank)
        w_r = _orthogonal(heads, rows, rank)
        self.weights = nn.Parameter(torch.cat((w_e, w_r), dim=-1) / head_dim**0.5)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        query_key: Tensor,
    ) -> Tensor:
        """Return W_{e|X} and W_{r|X}, ``(2, ..., H, d, s)``, for x ``(..., N, H · d)``."""
        rows = ksvd.spaced_rows(x, self.rows, mask).unflatten(-1, (self.weights.shape[0], -1))
        return torch.stack(ksvd.data_dependent_weights(rows, self.weights).chunk(2, dim=-1))


class SVDProjection(nn.Module):
    """Weights with which E and R carry the leading singular directions and values of K_att, by
    subspace iteration.

    Parameter ``w_e``: the weights at the start of the iteration, the same for every input.

    Args:
        heads: number of heads H.
        head_dim: width d of a head.
        rank: s.
    """

    def __init__(self, heads: int, head_dim: int, rank: int) -> None:
        super().__init__()
        self.w_e = _orthogonal(heads, head_dim, rank)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        query_key: Tensor,
    ) -> Tensor:
        """Return φ_kᵀ H_r and φ_qᵀ H_e, ``(2, ..., H, d, s)`` (see
        :func:`~probattn.functional.subspace.iterate`)."""
        start = dtypes.at_least_float32(self.w_e)
        with dtypes.exact(x.device.type):
            gram = subspace.grams(subspace.features(query_key, mask))
            return torch.stack(subspace.iterate(gram, start, steps=2))


def resolve(
    projection: str,
    heads: int,
    head_dim: int,
    rank: int,
    *,
    tokens: int | None,
    multiple: int,
) -> nn.Module:
    """Return the projection of that name.

    Args:
        projection: the name.
        heads, head_dim, rank: as for the projections.
        tokens: the number of tokens, if it is fixed.
        multiple: f(X) has at most ``rank · multiple`` rows.

    Raises:
        ValueError: an unknown name; a rank or a multiple out of bounds.
    """
    if not 1 <= rank <= head_dim:
        raise ValueError(
            f"rank must lie in 1..{head_dim} = dim / heads, the most singular values; got {rank}"
        )
    check_choice("projection", projection, ("data", "plain", "svd"))
    if multiple < 1:
        raise ValueError(f"need multiple ≥ 1, got {multiple}")
    if projection == "plain":
        return PlainProjection(heads, head_dim, rank)
    if projection == "svd":
        return SVDProjection(heads, head_dim, rank)
    rows = rank * multiple
    return DataProjection(heads, head_dim, rank, rows=min(tokens or rows, rows))


def _orthogonal(heads: int, rows: int, rank: int) -> nn.Parameter:
    """Return a random matrix with orthonormal columns (or rows) for each head."""
    weights = torch.empty(heads, rows, rank)
    for of_head in weights:
        nn.init.orthogonal_(of_head)
    return nn.Parameter(weights)
