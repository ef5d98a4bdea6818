"""Base of layers on the kernel singular value decomposition of their attention kernel."""

import pyro.distributions as dist
from torch import Tensor, nn

from probattn.attention import projection as projections
from probattn.attention.base import Laws, ProbabilisticAttention
from probattn.functional import dtypes, ksvd, subspace

Scores = tuple[Tensor, Tensor, Tensor, Tensor]
"""E, R, W_e and W_r."""


class KSVDAttention(ProbabilisticAttention):
    """Base of KEP-SVGP attention, which documents the options: queries, keys and their projection
    scores.

    Args:
        dim, heads, rank, projection, tokens, multiple, bias: as for the layer.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rank: int,
        projection: str,
        tokens: int | None,
        multiple: int,
        bias: bool,
    ) -> None:
        super().__init__(dim, heads)
        self.rank, self.tokens = rank, tokens
        self.query_key = nn.Linear(dim, 2 * dim, bias=bias)
        self.projection = projections.resolve(
            projection, heads, self.head_dim, rank, tokens=tokens, multiple=multiple
        )

    def scores(self, x: Tensor, mask: Tensor | None = None) -> Scores:
        """Return E and R ``(..., H, N, s)``, zero at padding, and their weights ``(..., H, d, s)``
        (eq. 10)."""
        return self.scores_of(self.queries_and_keys(x), x, mask)

    def queries_and_keys(self, x: Tensor) -> Tensor:
        """Return queries and keys ``(2, ..., H, N, d)``."""
        return (
            self.query_key(x)
            .unflatten(-1, (2, self.heads, self.head_dim))
            .movedim(-3, 0)
            .transpose(-3, -2)
        )

    def scores_of(self, query_key: Tensor, x: Tensor, mask: Tensor | None) -> Scores:
        """Return :meth:`scores` of given queries and keys ``(2, ..., H, N, d)`` of x."""
        weights = self.projection(x, mask, query_key)
        scores = ksvd.scores(query_key, weights)
        if mask is not None:
            scores = scores.where(mask[:, None, :, None], 0.0)
        return *scores, *weights

    def unit_noise(self, x: Tensor, tokens: int) -> Laws:
        """Return N(0, I) with events ``(H, tokens, s)`` for each example of x, as prior and
        posterior."""
        zeros = dtypes.at_least_float32(x).new_zeros(*x.shape[:-2], self.heads, tokens, self.rank)
        law = dist.Normal(zeros, zeros.new_ones(()), validate_args=False).to_event(3)
        return law, law

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return K_att = φ_q(X) φ_k(X)ᵀ ``(..., H, N, N)``, zero in the columns of padded keys."""
        query, key = map(
            ksvd.cosine_features, self.split_heads(self.query_key(self.checked(x, mask)), 2)
        )
        matrix = query @ key.mT
        return matrix if mask is None else matrix.where(mask[:, None, None, :], 0.0)

    def spectrum(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the singular values of K_att on the columns of E, of each example,
        ``(..., H, s)``, descending.

        They are those of Hᵀ K_att, H an orthonormal basis of E, at most those of K_att; with
        ``projection="svd"`` they are those of E itself, near the leading ones of K_att.
        """
        query_key = self.queries_and_keys(self.checked(x, mask))
        _, _, w_e, _ = self.scores_of(query_key, x, mask)
        with self.precise():
            gram = subspace.grams(subspace.features(query_key, mask))
            return subspace.singular_values(gram, dtypes.at_least_float32(w_e))

    def checked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Check x, its mask, and the number of tokens if that is fixed; return x with zeros at
        padding."""
        x = super().checked(x, mask)
        if self.tokens not in (None, x.shape[-2]):
            hint = 'where the length varies, use merge="add" without tokens, or pad and mask'
            raise ValueError(
                f"this layer was built for {self.tokens} tokens, got {x.shape[-2]}; {hint}"
            )
        return x
