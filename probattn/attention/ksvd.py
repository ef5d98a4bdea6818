"""Base of layers on the kernel singular value decomposition of their attention kernel."""

import pyro.distributions as dist
from torch import Tensor, nn

from probattn.attention.base import Laws, ProbabilisticAttention
from probattn.functional import dtypes, ksvd, padding, subspace
from probattn.functional.ksvd import Scores


class KSVDAttention(ProbabilisticAttention):
    """Base of KEP-SVGP attention, which sets the attributes: queries, keys and their projection
    scores.

    Attributes:
        rank, tokens: as for the layer.
        query_key: the map to queries and keys.
        projection: one of :mod:`probattn.attention.projection`.
    """

    rank: int
    tokens: int | None
    query_key: nn.Linear
    projection: nn.Module

    def scores(self, x: Tensor, mask: Tensor | None = None) -> Scores:
        """Return E and R ``(..., H, N, s)``, zero at padding, and their weights ``(..., H, d, s)``
        (eq. 10)."""
        return self.scores_of(self.queries_and_keys(x), x, mask)

    def queries_and_keys(self, x: Tensor) -> Tensor:
        """Return queries and keys ``(2, ..., H, N, d)``."""
        return self.split_heads(self.query_key(x), 2)

    def scores_of(
        self,
        query_key: Tensor,
        x: Tensor,
        mask: Tensor | None,
    ) -> Scores:
        """Return :meth:`scores` of given queries and keys ``(2, ..., H, N, d)`` of x."""
        weights = self.projection(x, mask, query_key)
        real, _ = padding.real_and_count(mask, x)
        scores = padding.rows(ksvd.scores(query_key, weights), real)
        return *scores, *weights

    def unit_noise(self, x: Tensor, tokens: int) -> Laws:
        """Return N(0, I) with events ``(H, tokens, s)`` for each example of x, as prior and
        posterior."""
        zeros = dtypes.at_least_float32(x).new_zeros(*x.shape[:-2], self.heads, tokens, self.rank)
        law = dist.Normal(zeros, zeros.new_ones(()), validate_args=False).to_event(3)
        return law, law

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return K_att = φ_q(X) φ_k(X)ᵀ ``(..., H, N, N)``, zero in the columns of padded keys."""
        query, key = ksvd.cosine_features(self.queries_and_keys(self.checked(x, mask)))
        return padding.columns(query @ key.mT, mask)

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
            raise ValueError(
                f"this layer was built for {self.tokens} tokens, got {x.shape[-2]}; where the "
                'length varies, use merge="add" without tokens, or pad and mask'
            )
        return x
