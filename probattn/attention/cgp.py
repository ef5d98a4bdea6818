"""Correlated Gaussian process attention."""

from typing import Any, Literal

from probattn.attention.correlated import CorrelatedAttention
from probattn.functional.cgp import CGP


class CGPAttention(CorrelatedAttention):
    """CGP attention (Bui et al., UAI 2025, section 3): queries and keys as two processes driven by a canonical one.

    The program, in each column of each head: **z_o ~ N(0, 𝒦_o + σ²I)** at latent inputs X_o = X W_oᵀ; z_q and z_k are
    the same process at queries and keys, scaled by σ_q and σ_k; observed is z_k = (𝒦_k + σ²I) V. The output is
    ν = E[z_q | z_k] (eq. 24), or a draw from the predictive. The regulariser α R (eq. 28), R ≤ log p(z_q = ν, z_k),
    holds the uncertainty of the output down.

    Sites, all local: ``regulariser``, a factor (closed form); or ``z_o``, latent, with ``z_q``, ``z_k``, observed
    (draws); ``f``, latent, the draw of the output. Events are ``(head, token, column)``. No site is global.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        noise: σ, initially the same for all heads.
        learn_noise: whether σ is learned.
        guide: of z_o: ``"posterior"`` (exact: R is the log marginal), ``"prior"`` (the paper's), ``"learned"`` (a mean
            and scales computed of the tokens).
        regulariser: R in closed form or by draws of z_o (eq. 42).
        output: ``"mean"`` (Alg. 1), or ``"draw"`` from the predictive.
        alpha: α, times what the handler :class:`~probattn.handlers.alpha` says; 0 leaves R out. From the first step on
            1 is much: four layers' R then outweighs what labels say.
        per: R is divided by the number of scalars of an example's output (``"scalar"``, so that α does not depend on
            width and length), by that of its columns (``"column"``, as the authors' code), or by nothing
            (``"example"``, Alg. 1).
        noisy_canonical: False for the paper's appendix B, which has 𝒦_o where 𝒦_o + σ²I stands.
        noisy_output: False for the paper's z_q | z_o, without σ²I: two equal tokens then need jitter.
        bias: whether the projections have a bias.

    Raises:
        ValueError: an option that does not fit, named with the ones that do.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        noise: float = 0.1,
        learn_noise: bool = False,
        guide: Literal["posterior", "prior", "learned"] = "posterior",
        regulariser: Literal["closed", "draws"] = "closed",
        output: Literal["mean", "draw"] = "draw",
        alpha: float = 0.1,
        per: Literal["scalar", "column", "example"] = "scalar",
        noisy_canonical: bool = True,
        noisy_output: bool = True,
        bias: bool = False,
    ) -> None:
        options = {"noise": noise, "learn_noise": learn_noise, "guide": guide, "regulariser": regulariser}
        super().__init__(dim, heads, output=output, alpha=alpha, per=per, bias=bias, **options)
        self.noisy_canonical, self.noisy_output = noisy_canonical, noisy_output

    def signature(self) -> dict[str, int | str]:
        """Which noise there is, beside what every CGP layer has."""
        return super().signature() | {"noisy_canonical": self.noisy_canonical, "noisy_output": self.noisy_output}

    def law(self, given: dict[str, Any]) -> CGP:
        """The joint law at the tokens, from the fields that both kinds of CGP share."""
        return CGP(**given, noisy_canonical=self.noisy_canonical, noisy_output=self.noisy_output)
