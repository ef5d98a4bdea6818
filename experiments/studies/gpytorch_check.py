"""Comparison of the layers' closed forms with GPyTorch's Gaussian processes in float64: ``probattn check-gp``.

Each component is compared at random inputs and parameters of several heads. For KEP-SVGP, SGPA and SV-DKL GPyTorch has
the same variational GP. For CGP it has the two exact GPs that determine the attention output one after the other, for
sparse CGP those with a low-rank kernel; their covariances are combined by the law of total covariance.
"""

from collections.abc import Iterator
from functools import partial

import gpytorch
import pyro.distributions as dist
import torch
from gpytorch import kernels, settings, variational
from gpytorch.distributions import MultivariateNormal
from pyro.distributions.kl import kl_divergence
from torch import Tensor

from probattn import priors
from probattn.attention.kernels import ARD
from probattn.functional import kep_svgp, sgpa
from probattn.functional.cgp import CGP
from probattn.functional.sparse_cgp import SparseCGP
from probattn.inference.methods.sv_dkl_gps import FeatureGPs

TOLERANCE = 1e-9
"""Largest relative difference that passes."""
HEADS, TOKENS, WIDTH, COLUMNS, INDUCING = 3, 7, 4, 2, 5
Pairs = Iterator[tuple[Tensor, Tensor]]
"""Quantities of a component, by this library and by GPyTorch."""


class ExactGP(gpytorch.models.ExactGP):
    """GP of targets ``(..., n)`` at x ``(..., n, d)``; inducing inputs make its kernel 𝒦_xz 𝒦_zz⁻¹ 𝒦_zx (DTC)."""

    def __init__(self, x: Tensor, y: Tensor, noise: Tensor, kernel: kernels.Kernel, inducing: Tensor | None = None):
        likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise.expand_as(y))
        super().__init__(x.expand(*y.shape, -1), y, likelihood)
        self.kernel = kernel if inducing is None else kernels.InducingPointKernel(kernel, inducing, likelihood)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior at some inputs."""
        return MultivariateNormal(x.new_zeros(x.shape[:-1]), self.kernel(x))


class VariationalGP(gpytorch.models.ApproximateGP):
    """GP with q(w) = N(m, T Tᵀ) ``(..., l)`` of the whitened values at inducing inputs ``(..., l, d)``."""

    def __init__(self, inducing: Tensor, loc: Tensor, tril: Tensor, kernel: kernels.Kernel):
        q = variational.CholeskyVariationalDistribution(loc.shape[-1], loc.shape[:-1])
        points = inducing.unsqueeze(-3).expand(*loc.shape, -1)
        super().__init__(variational.VariationalStrategy(self, points, q, False, jitter_val=0.0))
        q.variational_mean.data, q.chol_variational_covar.data = loc, tril
        self.variational_strategy.variational_params_initialized.fill_(1)
        self.kernel = kernel
        self.eval()

    forward = ExactGP.forward


def gp_check(*, seed: int = 0) -> dict[str, float]:
    """Return component → largest difference of a quantity from GPyTorch's, relative to its largest value.

    Args:
        seed: seed of the random inputs and parameters; PyTorch's generator is restored.
    """
    components = {"KEP-SVGP": kep_svgp_pairs, "SGPA": sgpa_pairs, "CGP": cgp_pairs}
    components |= {"sparse CGP": partial(cgp_pairs, is_sparse=True), "SV-DKL": sv_dkl_pairs}
    by_cholesky, dtc = settings.fast_computations(False, False, False), settings.sgpr_diagonal_correction(False)
    errors = {}
    with torch.random.fork_rng(devices=[]), torch.no_grad(), by_cholesky, dtc, settings.debug(False):
        torch.manual_seed(seed)
        for name, pairs in components.items():
            ratios = [(ours - theirs).abs().max() / theirs.abs().max() for ours, theirs in pairs()]
            errors[name] = torch.stack(ratios).max().item()  # NaN if any is
    return errors


def kep_svgp_pairs() -> Pairs:
    """Compare q(F) = N(E Λ⁻¹ m, E Λ⁻¹ S Λ⁻¹ Eᵀ) and its KL with a sparse GP with a linear kernel and Z = Λ."""
    e, lam, loc = _randn(HEADS, TOKENS, WIDTH), _randn(HEADS, WIDTH).exp(), _randn(HEADS, WIDTH, WIDTH)
    tril, linear = _tril(HEADS, WIDTH, WIDTH), kernels.LinearKernel().double().initialize(variance=1.0)
    gp = VariationalGP(lam.diag_embed(), loc / lam[:, None], tril / lam[:, None, :, None], linear)
    yield from _moments(*kep_svgp.marginals(e, lam, loc, tril), gp(e.unsqueeze(1)))
    yield kep_svgp.kl_divergence(loc, tril, lam), gp.variational_strategy.kl_divergence().sum(1)


def sgpa_pairs() -> Pairs:
    """Compare the decoupled form with v_γ = 0: q(f), and the KL of u, which is whitened like GPyTorch's.

    Then the standard form: inducing inputs at the tokens, q(f) = N(𝒦 v, L T² Lᵀ) with a diagonal T.
    """
    kernel = ARD(HEADS, WIDTH).double()
    kernel.load_state_dict({name: 0.3 * _randn(*value.shape) for name, value in kernel.state_dict().items()})
    tokens, inducing = (0.7 * _randn(HEADS, n, WIDTH) for n in (TOKENS, INDUCING))
    theirs = _rbf(kernel.variance.unsqueeze(1), kernel.log_lengthscale.exp()[:, None, None])
    loc, t, k_qq = _randn(HEADS, COLUMNS, INDUCING), _tril(HEADS, COLUMNS, INDUCING), kernel(tokens, tokens)
    a = sgpa.features(kernel(tokens, inducing), torch.linalg.cholesky(kernel(inducing, inducing)))
    gp, root = VariationalGP(inducing, loc, t, theirs), a.unsqueeze(1) @ t
    covariance = root @ root.mT + sgpa.conditional_covariance(k_qq, a).unsqueeze(1)
    yield from _moments(loc @ a.mT, covariance, gp(tokens.unsqueeze(1)))
    kl = kl_divergence(dist.MultivariateNormal(loc, scale_tril=t).to_event(2), priors.normal(torch.ones_like(loc)))
    yield kl, gp.variational_strategy.kl_divergence().sum()
    value, spread = _randn(HEADS, TOKENS, COLUMNS), _randn(HEADS, TOKENS).exp()
    tril = spread.diag_embed().unsqueeze(1).expand(-1, COLUMNS, -1, -1)
    gp = VariationalGP(tokens, value.mT @ torch.linalg.cholesky(k_qq), tril, theirs)
    yield (k_qq @ value).mT, gp(tokens.unsqueeze(1)).mean
    yield sgpa.amortised_kl(value, k_qq @ value, spread), gp.variational_strategy.kl_divergence().sum()


def cgp_pairs(*, is_sparse: bool = False) -> Pairs:
    """Compare z_q with two GPs: one at K predicts z_o at X_o, one with that mean at X_o predicts at Q and K (19-24).

    They are exact, or for sparse CGP regressions through the inducing inputs of keys and of queries (33, 55, 65-67). A
    GP at a scale of 1 sees z_k / σ_k with noise σ² / σ_k², and z_q is σ_q times what it predicts. The second GP's mean
    is linear in z_o; its matrix A_q comes from unit vectors.
    """
    query, key, latent = (0.7 * _randn(HEADS, TOKENS, WIDTH) for _ in range(3))
    fields = {"query": query, "key": key, "latent": latent, "value": _randn(HEADS, TOKENS, COLUMNS), "real": None}
    fields |= {"scales": (0.4 * _randn(2, HEADS)).exp(), "noise": 0.3 * _randn(HEADS).exp(), "count": TOKENS}
    of_query, of_key = 0.7 * _randn(2, HEADS, INDUCING, WIDTH) if is_sparse else (None, None)
    law = SparseCGP(**fields, inducing_query=of_query, inducing_key=of_key) if is_sparse else CGP(**fields)
    (sq, sk), noise, eye = law.scales[..., None, None], law.noise[:, None, None], torch.eye(TOKENS, dtype=query.dtype)

    def predict(x: Tensor, y: Tensor, to: Tensor, sigma2: Tensor, points: Tensor | None) -> tuple[Tensor, Tensor]:
        x, to, points = (a if a is None else a.unsqueeze(1).expand(-1, y.shape[1], -1, -1) for a in (x, to, points))
        f = ExactGP(x, y, sigma2, _rbf(torch.ones_like(sk[..., 0])), points).eval()(to)
        return f.mean, f.covariance_matrix[:, 0]

    z, given_key = predict(key, law.observed_key.mT / sk, latent, noise / sk**2, of_key)
    mean, query_covariance = predict(latent, z, query, noise, of_query)
    units, _ = predict(latent, eye.expand(HEADS, -1, -1), query, noise, of_query)
    query_covariance = sq**2 * query_covariance + noise * eye
    key_covariance = sk**2 * predict(latent, z, key, noise, of_key)[1] + noise * eye
    predictive = query_covariance + sq**2 * units.mT @ (given_key + noise * eye) @ units
    yield law.mean.mT, sq * mean
    laws = {law.query_covariance: query_covariance, law.key_covariance: key_covariance, law.predictive: predictive}
    zero, x = torch.zeros_like(query[..., 0]), _randn(HEADS, TOKENS)
    for ours, theirs in laws.items():
        yield ours.log_density(x.unsqueeze(-1)), MultivariateNormal(zero, theirs).log_prob(x)
    if not is_sparse:
        gp = ExactGP(key.unsqueeze(1), law.observed_key.mT, noise, _rbf(law.scales[1].unsqueeze(1) ** 2))
        evidence = gp.likelihood(gp(*gp.train_inputs)).log_prob(gp.train_targets).sum(-1)
        yield law.log_marginal() - law.predictive.log_peak(COLUMNS), evidence


def sv_dkl_pairs() -> Pairs:
    """Compare the marginals at features with GPyTorch's own interpolation from the grid and its lazy covariance."""
    gps, z = FeatureGPs(3, grid_size=12).double().eval(), 1.9 * torch.rand(TOKENS, 3).double() - 0.95
    for parameter in gps.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    ours = gps.marginals(z)
    gps.variational_strategy.__class__ = variational.GridInterpolationVariationalStrategy
    theirs = gps.marginals(z)
    yield from ((ours.mean, theirs.mean), (ours.variance, theirs.variance))


def _moments(mean: Tensor, covariance: Tensor, theirs: MultivariateNormal) -> Pairs:
    yield mean, theirs.mean
    yield covariance, theirs.covariance_matrix


def _rbf(variance: Tensor, lengthscale: Tensor | float = 1.0) -> kernels.Kernel:
    """Return the kernel σ² exp(−½ Σ_i (a_i − b_i)² / ℓ_i²) of a batch of heads."""
    base = kernels.RBFKernel(ard_num_dims=WIDTH, batch_shape=variance.shape)
    kernel = kernels.ScaleKernel(base, batch_shape=variance.shape).double()
    base.lengthscale, kernel.outputscale = lengthscale, variance
    return kernel


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _tril(*shape: int) -> Tensor:
    """Return random Cholesky factors ``(*shape, shape[-1])``."""
    return 0.4 * _randn(*shape, shape[-1]).tril(-1) + torch.diag_embed((0.5 * _randn(*shape)).exp())
