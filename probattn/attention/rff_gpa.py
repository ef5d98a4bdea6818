"""Random Fourier feature Gaussian process attention (RFF-GPA), linear in the number of tokens."""

from typing import Any

from torch import Tensor

from probattn.attention.fourier import FourierLayer
from probattn.attention.regression import RegressionAttention
from probattn.functional.feature_regression import FeatureRegression


class RFFGPAttention(FourierLayer, RegressionAttention):
    """RFF-GPA (Mahfoozi, Yang, Li & Zhang, 2026, arXiv 2610.08578): GP regression of the values on
    the keys, in the space of M random Fourier features.

    The program, in each column of each head: **w ~ N(0, I)** `(M,)`, v_n = φ(k_n)ᵀ w + σ ε_n; the
    output is φ(q)ᵀ w. Given V, w ~ N(A⁻¹ Φ_kᵀ V, σ² A⁻¹) with A = Φ_kᵀ Φ_k + σ² I, at O(N M²) a
    head; the output has the mean Φ_q A⁻¹ Φ_kᵀ V. The kernel s² exp(−½ Σ (Δ/ℓ)²) has learned s and
    ℓ.

    Sites: ``frequencies``, latent, global, event ``(head, frequency, dimension)``, with
    ``frequencies="sampled"``: their prior is the kernel's spectral density, so that another
    ``prior`` is another kernel. ``w``, latent, local, event ``(head, feature, output)``, prior
    N(0, I), posterior exact given the values, with ``output="draw"``.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        features: M, an even number: pairs of cos and sin.
        frequencies: ``"orthogonal"`` (in blocks of the head's width), ``"independent"``,
            ``"equal"``, orthogonal and of one length as in the authors' code, or ``"sampled"``.
        prior: of sampled frequencies, one of :mod:`probattn.priors` or its name; normal by default.
            Products of Student-t densities are those of Matérn kernels.
        lengthscale: initial ℓ.
        variance: initial s².
        noise: σ, standard deviation of the values around f.
        learn_noise: learn σ of each head.
        output: ``"mean"``, or ``"draw"`` with a draw of w.
        alpha: weight of the values' log marginal likelihood in the log joint.
        symmetric: share the weights of queries and keys, as in the paper.
        bias: give query, key and value a bias.

    Raises:
        ValueError: an invalid option, with the valid ones.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        features: int = 32,
        learn_noise: bool = True,
        symmetric: bool = True,
        **options: Any,
    ) -> None:
        options |= {"learn_noise": learn_noise, "symmetric": symmetric}
        super().__init__(dim, heads, features=features, **options)

    def law(self, x: Tensor, mask: Tensor | None, **latents: Tensor) -> FeatureRegression:
        """Return the law of the output at checked tokens, and values of sampled frequencies;
        pure."""
        angles, value = self.angles(x, latents.get("frequencies"))
        query, key = angles[0], angles[-1]
        value = value.expand(*query.shape[:-1], -1)  # over draws of the frequencies
        return self.regression(self.fourier.map(), query, key, value, mask)
