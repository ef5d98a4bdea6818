"""Correlated Gaussian processes at the tokens of an example (CGP paper, section 3).

𝒦_ab is the kernel exp(−½‖a − b‖²) between point sets, times σ_q and σ_k once for each argument that
is queries or keys.
"""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from probattn.functional import jitter, padding, triangular
from probattn.functional.correlated import Canonical, Correlated
from probattn.functional.gaussian import Dense, Inverted, conditional
from probattn.functional.kernels import rbf


@dataclass(frozen=True, eq=False)
class CGP(Correlated):
    """z_o ~ N(0, P), P = 𝒦_o + σ²I; z_q | z_o ~ N(A_q z_o, Σ_q + σ²I); z_k | z_o ~ N(A_k z_o, Σ_k +
    σ²I).

    A_q = 𝒦_qo P⁻¹, Σ_q = 𝒦_q − A_q 𝒦_oq, and likewise for k. Observed is z_k = (𝒦_k + σ²I) V (Alg.
    1). With P = L Lᵀ and B_q = L⁻¹ 𝒦_oq, everything follows from B_q and B_k.

    Args:
        noisy_canonical: False for the paper's appendix B, with 𝒦_o in place of P.
        noisy_output: False for the paper's z_q | z_o ~ N(A_q z_o, Σ_q), which is singular if two
            tokens are equal.
    """

    noisy_canonical: bool = True
    noisy_output: bool = True

    @cached_property
    def mean(self) -> Tensor:
        """ν = 𝒦_qo P⁻¹ 𝒦_ok V = B_qᵀ B_k V (eq. 24), with one Cholesky factor."""
        return self._bridge @ self.value

    @cached_property
    def observed_key(self) -> Tensor:
        """(𝒦_k + σ²I) V."""
        return self._noisy(self._k_kk) @ self.value

    @cached_property
    def prior(self) -> Inverted:
        """P, or 𝒦_o."""
        kernel = self._kernel(self.latent, self.latent)
        return self._inverted(kernel, "K_o + σ²I", noisy=self.noisy_canonical)

    @cached_property
    def query_covariance(self) -> Dense:
        """Σ_q + σ²I, or Σ_q."""
        return self._dense(self._k_qq, "Σ_q, of z_q given z_o", self._b_q, noisy=self.noisy_output)

    @cached_property
    def key_covariance(self) -> Dense:
        """Σ_k + σ²I."""
        return self._dense(self._k_kk, "Σ_k + σ²I, of z_k given z_o", self._b_k)

    @cached_property
    def predictive(self) -> Dense:
        """𝒦_q − A_q 𝒦_ok (𝒦_k + σ²I)⁻¹ 𝒦_ko A_qᵀ, + σ²I where the output is noisy; means cancel."""
        explained = self._marginal_key.root @ self._bridge.mT
        name = "the predictive covariance of z_q given z_k"
        return self._dense(self._k_qq, name, explained, noisy=self.noisy_output)

    def means(self, z_o: Tensor) -> tuple[Tensor, Tensor]:
        """Return B_qᵀ L⁻¹ z_o and B_kᵀ L⁻¹ z_o."""
        whitened = triangular.product(self.prior.root, z_o)
        query = triangular.product(self._b_q.mT, whitened)
        return query, triangular.product(self._b_k.mT, whitened)

    def spreads(self, covariance: Dense) -> Tensor:  # type: ignore[override]
        """Return ‖L_Σ⁻¹ Bᵀ L⁻¹ L_C‖², summed over both processes."""
        roots: tuple[Tensor, ...] = (self._b_q.mT, self._b_k.mT)
        if covariance is not self.prior:
            whitened = self.prior.root @ covariance.tril
            roots = tuple(root @ whitened for root in roots)
        return self.query_covariance.quadratic(roots[0]) + self.key_covariance.quadratic(roots[1])

    def learned(self, loc: Tensor, scale: Tensor) -> Canonical:
        """Return N(P m, diag(t) P diag(t)); unlike L m, P m is equivariant to permutations of the
        tokens."""
        tril = self.prior.tril
        return Canonical(
            tril @ (tril.mT @ loc), Dense(tril * scale.unsqueeze(-1), self.count, self.real)
        )

    def posterior(self) -> Canonical:
        """Return N(𝒦_ok V, P − 𝒦_ok (𝒦_k + σ²I)⁻¹ 𝒦_ko), since z_k = (𝒦_k + σ²I) V."""
        covariance = conditional(self.prior, self._b_k, self.key_covariance)
        return Canonical(self.prior.tril @ self._seen, covariance)

    def key_evidence(self) -> Tensor:
        """Return log N(z_k; 0, 𝒦_k + σ²I), z_k = (𝒦_k + σ²I) V."""
        fit = (self.value * self.observed_key).sum((-2, -1))
        return self._marginal_key.log_peak(self.value.shape[-1]) - 0.5 * fit

    @cached_property
    def _seen(self) -> Tensor:
        """L⁻¹ 𝒦_ok V."""
        return self._b_k @ self.value

    @cached_property
    def _bridge(self) -> Tensor:
        """B_qᵀ B_k = 𝒦_qo P⁻¹ 𝒦_ok, ``(..., H, N, N)``."""
        return self._b_q.mT @ self._b_k

    @cached_property
    def _marginal_key(self) -> Inverted:
        return self._inverted(self._k_kk, "K_k + σ²I")

    @cached_property
    def _k_qq(self) -> Tensor:
        return self._kernel(self.query, self.query, 2 * self.scales[0].log())

    @cached_property
    def _k_kk(self) -> Tensor:
        return self._kernel(self.key, self.key, 2 * self.scales[1].log())

    @cached_property
    def _b_q(self) -> Tensor:
        """B_q = L⁻¹ 𝒦_oq, ``(..., H, N, N)``."""
        return self._root(self.query, self.scales[0].log())

    @cached_property
    def _b_k(self) -> Tensor:
        """B_k = L⁻¹ 𝒦_ok, ``(..., H, N, N)``."""
        return self._root(self.key, self.scales[1].log())

    def _root(self, points: Tensor, log_scale: Tensor) -> Tensor:
        return self.prior.root @ self._kernel(self.latent, points, log_scale)

    def _kernel(
        self,
        a: Tensor,
        b: Tensor,
        log_scale: Tensor | None = None,
    ) -> Tensor:
        return padding.on_pairs(rbf(a, b, log_scale), self.real)

    def _dense(
        self,
        kernel: Tensor,
        name: str,
        root: Tensor | None = None,
        *,
        noisy: bool = True,
    ) -> Dense:
        """Factorise the kernel, less BᵀB for a root B, plus σ²I; jitter is relative to the kernel,
        whose rounding errors the difference has."""
        matrix = kernel if root is None else triangular.less_gram(kernel, root)
        matrix = self._noisy(matrix, noisy=noisy)
        tril = jitter.cholesky(matrix, name, jitter.mean_diagonal(kernel))
        return Dense(tril, self.count, self.real)

    def _inverted(self, kernel: Tensor, name: str, *, noisy: bool = True) -> Inverted:
        """Factorise the kernel plus σ²I, and invert the factor."""
        matrix = self._noisy(kernel, noisy=noisy)
        tril = jitter.cholesky(matrix, name)
        root = triangular.inverse_factor(matrix, tril)
        return Inverted(tril, self.count, self.real, root=root)

    def _noisy(self, matrix: Tensor, *, noisy: bool = True) -> Tensor:
        """Return the matrix with σ²I added, and ones on the diagonal at padding."""
        return padding.plus_diagonal(matrix, self.noise if noisy else 0.0, self.real)
