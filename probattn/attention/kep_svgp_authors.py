"""KEP-SVGP attention as in its authors' code: noise for each token, and the KL of each example."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

from probattn.attention.base import Laws
from probattn.attention.kep_svgp import KEPSVGPAttention
from probattn.attention.merge import Add, Concat
from probattn.functional import dtypes, kep_svgp
from probattn.sites import Sites

_TRIL = transform_to(constraints.lower_cholesky)


class AuthorsKEPSVGPAttention(KEPSVGPAttention):
    """KEP-SVGP attention with the sampling, the objective and the initial values of its authors'
    code.

    Each example has inducing variables of its own, whose posterior q(u_d) = N(m_d, L_d L_dᵀ) is the
    same for all: their whole KL stands beside the log-likelihood of each example. F at token n is
    ``F_nd = [E + R]_n Λ⁻¹ (m_d + L_d ε_n)``, with noise ε_n ~ N(0, I) that is independent for each
    token and shared by the outputs d; merged by weights, it is W₁ [F^e; F^r], with noise of its own
    for each token of either branch. Added, each output has the law (16) at one token, but not over
    tokens: u is one function there, with correlated values. For results of the paper;
    :class:`~probattn.attention.kep_svgp.KEPSVGPAttention` is for new work.

    Sites: ``noise``, latent, local, ε, whose posterior is its prior, event
    ``(head, token, inducing index)``, with the tokens of both branches one after the other where
    weights merge them; ``kl``, a local factor −KL(q(u) ‖ N(0, Λ²)), without KL weight; ``ksvd`` as
    in the base class, with ``penalty="authors"``. Parameters: ``loc``, m
    ``(head, output, inducing index)``, and ``raw_tril``, L with the logarithm of its diagonal, both
    N(0, 1) at the start; ``log_scale``, log λ, there uniform on [−2, 0]; W_e and W_r, there
    orthogonal.

    Args:
        dim, heads, rank, merge, pair, tokens, multiple, eta, bias: as for
            :class:`KEPSVGPAttention`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rank: int | None = None,
        merge: Literal["add", "concat", "concat_lowrank"] = "add",
        pair: Literal["er", "ee", "rr"] = "er",
        tokens: int | None = None,
        multiple: int = 10,
        eta: float = 1.0,
        bias: bool = False,
    ) -> None:
        super().__init__(
            dim,
            heads,
            rank=rank,
            merge=merge,
            pair=pair,
            tokens=tokens,
            multiple=multiple,
            eta=eta,
            penalty="authors",
            bias=bias,
        )
        rank = self.rank
        self.log_scale = nn.Parameter(torch.empty(heads, rank).uniform_(-2.0, 0.0))
        self.loc = nn.Parameter(torch.randn(heads, rank, rank))
        self.raw_tril = nn.Parameter(torch.randn(heads, rank, rank, rank))
        with torch.no_grad():
            for weights in self.projection.parameters():
                weights.mul_(self.head_dim**0.5)
            if isinstance(self.merge, Concat):
                self.merge.weights.div_(3**0.5)  # the variance of nn.Linear's weights

    def sites_at(self, scale: Tensor) -> Sites:
        """Return no sites: the posterior is part of the layer."""
        return {}

    def has_local_sites(self) -> bool:
        """Return True, for the noise."""
        return True

    def local_sites(self, x: Tensor, mask: Tensor | None) -> dict[str, Laws]:
        """Return the law N(0, I) of ``noise``."""
        tokens = x.shape[-2] * (1 if isinstance(self.merge, Add) else 2)
        return {"noise": self.unit_noise(x, tokens)}

    def compute(  # type: ignore[override]  # noise in the place of u
        self,
        x: Tensor,
        mask: Tensor | None,
        *,
        scale: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output, and the log factors ``ksvd`` and ``kl`` of each example."""
        loc = dtypes.at_least_float32(self.loc)
        tril = _TRIL(dtypes.at_least_float32(self.raw_tril))
        e, r, *_ = scores = self.scores_of(self.queries_and_keys(x), x, mask)
        branches = self.branches(e, r)
        is_sum = isinstance(self.merge, Add)
        # (E + R) Λ⁻¹, or E Λ⁻¹ and R Λ⁻¹ one after the other
        merged = self.merge(*branches) if is_sum else torch.cat(branches, dim=-2)
        whitened = dtypes.at_least_float32(merged / scale.unsqueeze(-2))
        with self.precise():
            kl = kep_svgp.kl_divergence(loc, tril, scale).sum(-1).expand(x.shape[-3])
            values = kep_svgp.function_values_per_token(whitened, loc, tril, noise)
            if not is_sum:
                values = self.merge(*values.chunk(2, dim=-2))
        output = self.from_heads(values)
        return output, {"ksvd": -self.penalty(scores, scale, mask), "kl": -kl}
