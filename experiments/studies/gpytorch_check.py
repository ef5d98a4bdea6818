"""Comparison of the layers' closed forms with GPyTorch's Gaussian processes in float64:
``probattn check-gp``.

Each component is compared at random inputs and parameters of several heads. For KEP-SVGP and SGPA
GPyTorch has the same variational GP. For sparse CGP it has the two regressions with a low-rank
kernel that determine the attention output one after the other; their covariances are combined by
the law of total covariance.
"""

from collections.abc import Iterator
from typing import Any

import gpytorch
import torch
from gpytorch import kernels, settings, variational
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from probattn.functional import kep_svgp, sgpa
from probattn.functional.kernels import rbf
from probattn.functional.sparse_cgp import SparseCGP

TOLERANCE = 1e-9
"""Largest relative difference that passes."""
HEADS, TOKENS, WIDTH, COLUMNS, INDUCING = 3, 7, 4, 2, 5
Pairs = Iterator[tuple[Tensor, Tensor]]
"""Quantities of a component, by this library and by GPyTorch."""


class Regression(gpytorch.models.ExactGP):
    """GP of targets ``(..., n)`` at x ``(..., n, d)``; inducing inputs make its kernel 𝒦_xz 𝒦_zz⁻¹
    𝒦_zx (DTC)."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        noise: Tensor,
        inducing: Tensor,
    ):
        likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise.expand_as(y))
        super().__init__(x, y, likelihood)
        self.kernel = kernels.InducingPointKernel(_rbf(), inducing, likelihood)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior at some inputs."""
        return MultivariateNormal(x.new_zeros(x.shape[:-1]), self.kernel(x))


class VariationalGP(gpytorch.models.ApproximateGP):
    """GP with q(w) = N(m, T Tᵀ) ``(..., l)`` of the whitened values at inducing inputs
    ``(..., l, d)``."""

    def __init__(
        self,
        inducing: Tensor,
        loc: Tensor,
        tril: Tensor,
        kernel: kernels.Kernel,
    ):
        q = variational.CholeskyVariationalDistribution(loc.shape[-1], loc.shape[:-1])
        points = inducing.unsqueeze(-3).expand(*loc.shape, -1)
        super().__init__(variational.VariationalStrategy(self, points, q, False, jitter_val=0.0))
        q.variational_mean.data, q.chol_variational_covar.data = loc, tril
        self.variational_strategy.variational_params_initialized.fill_(1)
        self.kernel = kernel

    forward = Regression.forward


def gp_check(*, seed: int = 0) -> dict[str, float]:
    """Return component → largest difference of a quantity from GPyTorch's, relative to its largest
    value.

    Args:
        seed: seed of the random inputs and parameters; PyTorch's generator is restored.
    """
    components = {"KEP-SVGP": kep_svgp_pairs, "SGPA": sgpa_pairs, "sparse CGP": sparse_cgp_pairs}
    errors = {}
    with (
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        settings.fast_computations(False, False, False),  # by Cholesky factors
        settings.sgpr_diagonal_correction(False),  # DTC
        settings.debug(False),
    ):
        torch.manual_seed(seed)
        for name, pairs in components.items():
            ratios = [(ours - theirs).abs().max() / theirs.abs().max() for ours, theirs in pairs()]
            errors[name] = torch.stack(ratios).max().item()  # NaN if any is
    return errors


def kep_svgp_pairs() -> Pairs:
    """Compare q(F) = N(E Λ⁻¹ m, E Λ⁻¹ S Λ⁻¹ Eᵀ) and its KL with a sparse GP with a linear kernel
    and Z = Λ."""
    e = _randn(HEADS, TOKENS, WIDTH)
    lam = _randn(HEADS, WIDTH).exp()
    loc = _randn(HEADS, WIDTH, WIDTH)
    tril = _tril(HEADS, WIDTH, WIDTH)
    mean, covariance = kep_svgp.marginals(e, lam, loc, tril)
    gp = VariationalGP(
        inducing=lam.diag_embed(),
        loc=loc / lam[:, None],  # Λ⁻¹ m, whitened
        tril=tril / lam[:, None, :, None],
        kernel=kernels.LinearKernel().double().initialize(variance=1.0),
    ).eval()
    theirs = gp(e.unsqueeze(1))
    yield mean, theirs.mean
    yield covariance, theirs.covariance_matrix
    yield kep_svgp.kl_divergence(loc, tril, lam), gp.variational_strategy.kl_divergence().sum(1)


def sgpa_pairs() -> Pairs:
    """Compare q(f) of the decoupled form with v_γ = 0, whose u is whitened like GPyTorch's."""
    tokens = 0.7 * _randn(HEADS, TOKENS, WIDTH)
    inducing = 0.7 * _randn(HEADS, INDUCING, WIDTH)
    loc = _randn(HEADS, COLUMNS, INDUCING)
    tril = _tril(HEADS, COLUMNS, INDUCING)
    theirs = VariationalGP(inducing, loc, tril, _rbf()).eval()(tokens.unsqueeze(1))
    # a = K_xz L⁻ᵀ, L Lᵀ = K_zz; cov = a T Tᵀ aᵀ + K_xx − a aᵀ
    a = sgpa.features(rbf(tokens, inducing), torch.linalg.cholesky(rbf(inducing, inducing)))
    root = a.unsqueeze(1) @ tril
    conditional = sgpa.conditional_covariance(rbf(tokens, tokens), a)
    yield loc @ a.mT, theirs.mean
    yield root @ root.mT + conditional.unsqueeze(1), theirs.covariance_matrix


def sparse_cgp_pairs() -> Pairs:
    """Compare z_q with two regressions: one at K predicts z_o at X_o, one with that mean at X_o
    predicts at Q and K.

    They go through the inducing inputs of keys and of queries (33, 55, 65-67). A GP at a scale of 1
    sees z_k / σ_k with noise σ² / σ_k², and z_q is σ_q times what it predicts. The second GP's mean
    is linear in z_o; its matrix A_q comes from unit vectors.
    """
    query, key, latent = 0.7 * _randn(3, HEADS, TOKENS, WIDTH)
    of_query, of_key = 0.7 * _randn(2, HEADS, INDUCING, WIDTH)
    value = _randn(HEADS, TOKENS, COLUMNS)
    scales = (0.4 * _randn(2, HEADS)).exp()
    noise = 0.3 * _randn(HEADS).exp()
    law = SparseCGP(query, key, latent, value, scales, noise, None, TOKENS, of_query, of_key)
    sq, sk = scales[..., None, None]
    noise = noise[:, None, None]
    eye = torch.eye(TOKENS, dtype=query.dtype).expand(HEADS, -1, -1)
    # z_o from the values at K, z_q from z_o, and A_q.
    z, of_z = _predict(key, law.observed_key.mT / sk, latent, noise / sk**2, of_key)
    mean, of_values = _predict(latent, z, query, noise, of_query)
    units, _ = _predict(latent, eye, query, noise, of_query)
    _, at_key = _predict(latent, z, key, noise, of_key)
    predictive = of_values + units.mT @ (of_z + noise * eye) @ units
    yield law.mean.mT, sq * mean
    yield _covariance(law.query_covariance), sq**2 * of_values
    yield _covariance(law.key_covariance), sk**2 * at_key
    yield _covariance(law.predictive), sq**2 * predictive


def _predict(
    x: Tensor, y: Tensor, to: Tensor, sigma2: Tensor, inducing: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mean and covariance at ``to`` of a GP of the values y ``(heads, columns, n)`` at x."""
    columns = y.shape[1]
    x = x.unsqueeze(1).expand(-1, columns, -1, -1)
    f = Regression(x, y, sigma2, inducing.unsqueeze(1)).eval()(to.unsqueeze(1))
    return f.mean, f.covariance_matrix[:, 0]


def _covariance(law: Any) -> Tensor:
    return law.factor @ law.factor.mT


def _rbf() -> kernels.Kernel:
    return kernels.RBFKernel().double().initialize(lengthscale=1.0)


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _tril(*shape: int) -> Tensor:
    """Return random Cholesky factors ``(*shape, shape[-1])``."""
    below = 0.4 * _randn(*shape, shape[-1]).tril(-1)
    diagonal = (0.5 * _randn(*shape)).exp()
    return below + diagonal.diag_embed()
