"""Correlated Gaussian process attention with random Fourier features (RFF-CGP)."""

from typing import Any, Literal

from torch import Tensor

from probattn.attention.correlated import CorrelatedAttention
from probattn.attention.fourier import FourierLayer
from probattn.attention.options import check_choice
from probattn.functional.sparse_cgp import RFFCGP


class RFFCGPAttention(FourierLayer, CorrelatedAttention):
    """RFF-CGP (Mahfoozi, Yang, Li & Zhang, 2026, arXiv 2610.08578): CGP in the space of M random
    Fourier features, linear in the number of tokens.

    As :class:`CGPAttention` with the kernel φ(x)ᵀφ(y) of queries, keys and latent inputs, at O(N
    M²) a head without an N×N matrix; observed is z_k = V. The mean output is Φ_q B Φ_kᵀ (Φ_k Φ_kᵀ +
    σ²I)⁻¹ V with B = (Φ_oᵀ Φ_o + σ²I)⁻¹ Φ_oᵀ Φ_o.

    Sites: as :class:`CGPAttention`, without ``nu`` for ``regulariser="keys"``; and
    ``frequencies``, as in :class:`RFFGPAttention`.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        features, frequencies, prior, variance: as for :class:`RFFGPAttention`.
        lengthscale: initial ℓ; with 1 the kernel is that of :class:`CGPAttention`.
        regulariser: R is ``"joint"``, CGP's bound on log p(z_q = ν, z_k), or ``"keys"``, that on
            log p(z_k), the likelihood of the key path, which the posterior of z_o reaches (and
            which the collapsed form has in closed form, for this guide alone).
        noise, learn_noise, canonical_guide, collapsed, output, alpha, regulariser_norm, bias: as
            for :class:`CGPAttention`.

    Raises:
        ValueError: an invalid option, with the valid ones.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        lengthscale: float = 1.0,
        regulariser: Literal["joint", "keys"] = "joint",
        **options: Any,
    ) -> None:
        super().__init__(dim, heads, lengthscale=lengthscale, **options)
        check_choice("regulariser", regulariser, ("joint", "keys"))
        self.regulariser = regulariser
        if self.collapsed and regulariser == "keys" and self.canonical_guide != "posterior":
            raise ValueError(
                'with collapsed=True and regulariser="keys" R is log p(z_k) itself: leave '
                f"canonical_guide={self.canonical_guide!r} out"
            )

    def points(self, x: Tensor, *, frequencies: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return angles of queries, keys and latent inputs, and values."""
        (query, key, latent), value = self.angles(x, frequencies, self.latent)
        return query, key, latent, value

    def law_of(self, **given: Any) -> RFFCGP:
        """Return the joint law with these fields."""
        # over draws of the frequencies
        given["value"] = given["value"].expand(*given["query"].shape[:-1], -1)
        return RFFCGP(**given, features=self.fourier.map())
