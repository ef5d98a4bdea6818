"""Correlated Gaussian process attention."""

from typing import Any

from probattn.attention.correlated import CorrelatedAttention
from probattn.functional.cgp import CGP


class CGPAttention(CorrelatedAttention):
    """CGP attention (Bui et al., UAI 2025, section 3): queries and keys as two processes driven by
    a canonical one.

    The program, in each column of each head: **z_o ~ N(0, 𝒦_o + σ²I)** at latent inputs X_o = X
    W_oᵀ; z_q and z_k are the same process at queries and keys, scaled by σ_q and σ_k, and
    independent given z_o; observed is z_k = (𝒦_k + σ²I) V. The output is z_q given z_o, whose law
    under the exact posterior of z_o is that of z_q given z_k, with mean ν (eq. 24). The regulariser
    α R (eq. 28), R ≤ log p(z_q = ν, z_k), limits its uncertainty.

    Sites, all local, events ``(head, token, column)``; no site is global:

    - ``z_o``, latent, the canonical process; its posterior is ``canonical_guide``.
    - ``z_k`` and ``nu``, observed given z_o: the keys' process, and the queries' at ν. With z_o
      they form R, so all three are scaled by α; with ``alpha=0`` z_o is sampled but not scored, and
      these two are left out.
    - ``z_q``, latent, the output given z_o, with its prior as its posterior; absent with
      ``output="mean"``.

    With ``collapsed=True`` z_o is integrated out: ``regulariser``, a factor, is R in closed form,
    and ``z_q`` is sampled given z_k. The output has the same law as with
    ``canonical_guide="posterior"``, at a lower cost.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        noise: σ, initially the same for all heads.
        learn_noise: learn σ.
        canonical_guide: guide of z_o: ``"posterior"``, exactly p(z_o | z_k); ``"prior"``;
            ``"learned"``, amortised, with mean and scales computed from the tokens; or a callable
            ``(dim, heads) -> module`` whose call with ``(law, x)``, the joint law
            (:class:`~probattn.functional.correlated.Correlated`) and the tokens ``(..., N, dim)``,
            returns a :class:`~probattn.functional.correlated.Canonical` or a Pyro distribution with
            events ``(H, N, head_dim)``. With ``collapsed`` it is the guide in R alone: with
            ``"posterior"`` R is the log marginal, with ``"prior"`` the paper's bound (27).
        collapsed: integrate z_o out in closed form.
        output: ``"draw"``, of z_q, or ``"mean"``: E[z_q | z_o], collapsed ν (Alg. 1).
        alpha: α, multiplied by the weight of the handler :class:`~probattn.weights.alpha`; 0 leaves
            R out. 1 is large from the first step on: R of four layers then outweighs the labels.
        regulariser_norm: what R is divided by: the number of scalars of an example's output
            (``"scalar"``, so that α does not depend on width and length), the number of its columns
            (``"column"``, as in the authors' code), or nothing (``"example"``, Alg. 1).
        noisy_canonical: False for the paper's appendix B, with 𝒦_o in place of 𝒦_o + σ²I.
        noisy_output: False for the paper's z_q | z_o, without σ²I; two equal tokens then need
            jitter.
        bias: give the projections a bias.

    Raises:
        ValueError: an invalid option, with the valid ones.
    """

    signed = ("output", "collapsed", "noisy_canonical", "noisy_output")

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        noisy_canonical: bool = True,
        noisy_output: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(dim, heads, **options)
        self.noisy_canonical = noisy_canonical
        self.noisy_output = noisy_output

    def law_of(self, **given: Any) -> CGP:
        """Return the joint law with these fields."""
        return CGP(**given, noisy_canonical=self.noisy_canonical, noisy_output=self.noisy_output)
