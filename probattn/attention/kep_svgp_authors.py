"""KEP-SVGP attention as in its authors' code: noise for each token, and the KL of each example."""

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

from probattn.attention.kep_svgp import KEPSVGPAttention
from probattn.functional import dtypes, kep_svgp

_TRIL = transform_to(constraints.lower_cholesky)


class AuthorsKEPSVGPAttention(KEPSVGPAttention):
    """KEP-SVGP attention with the sampling, the objective and the initial values of its authors' code.

    Each example has inducing variables of its own, whose posterior q(u_d) = N(m_d, L_d L_dᵀ) is the same for all: their
    whole KL stands beside the log-likelihood of each example. F at token n is ``F_nd = [E + R]_n Λ⁻¹ (m_d + L_d ε_n)``,
    or W₁ [E; R] in place of E + R; the noise ε_n ~ N(0, I) is independent for each token and shared by the outputs d.
    Each output has the law (16) at one token, but not over tokens: u is one function there, with correlated values.
    For results of the paper; :class:`~probattn.attention.kep_svgp.KEPSVGPAttention` is for new work.

    Sites: ``noise``, latent, local, ε, event ``(head, token, inducing index)``, whose posterior is its prior; ``kl``, a
    local factor −KL(q(u) ‖ N(0, Λ²)), without KL weight; ``ksvd`` as in the base class, with ``penalty="authors"``.
    Parameters: ``loc``, m ``(head, output, inducing index)``, and ``raw_tril``, L with the logarithm of its diagonal,
    both N(0, 1) at the start; ``scale``, Λ, there log-uniform on [e⁻², 1].

    Args:
        dim, heads, rank, merge, pair, tokens, multiple, eta, bias: as in the base class.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rank: int,
        merge: str = "add",
        pair: str = "er",
        tokens: int | None = None,
        multiple: int = 10,
        eta: float = 1.0,
        bias: bool = False,
    ) -> None:
        options = {"rank": rank, "merge": merge, "pair": pair, "tokens": tokens, "multiple": multiple, "eta": eta}
        super().__init__(dim, heads, **options, penalty="authors", bias=bias)
        self.scale = torch.empty(heads, rank).uniform_(-2.0, 0.0).exp()
        self.loc = nn.Parameter(torch.randn(heads, rank, rank))
        self.raw_tril = nn.Parameter(torch.randn(heads, rank, rank, rank))

    def sites(self) -> dict[str, dist.TorchDistribution]:
        """Return no sites: the posterior is part of the layer."""
        return {}

    def is_stochastic(self) -> bool:
        """Return True, since the noise is sampled at the tokens."""
        return True

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the program once; arguments and result as in the base class."""
        x, lam = self.checked(x, mask), self.scale
        e, r, *_ = scores = self.scores_of(self.queries_and_keys(x), x, mask)
        self.penalise(lambda: scores, lam, x, mask)
        loc, tril = dtypes.at_least_float32(self.loc), _TRIL(dtypes.at_least_float32(self.raw_tril))
        self.penalty("kl", lambda: kep_svgp.kl_divergence(loc, tril, lam).sum(-1).expand(x.shape[-3]))
        merged = self.merge(*({"e": e, "r": r}[branch] for branch in self.pair)) / lam.unsqueeze(-2)
        with self.precise():
            merged = dtypes.at_least_float32(merged)
            law = dist.Normal(torch.zeros_like(merged), merged.new_ones(()), validate_args=False).to_event(3)
            noise = self.sample_local("noise", law, law)
            values = merged @ loc.mT + torch.einsum("...hni,hdij,...hnj->...hnd", merged, tril, noise)
        return dtypes.apply_linear(self.out, self.join_heads(values))
