"""Comparison of the layers' closed forms with GPyTorch's Gaussian processes in float64: ``probattn check-gp``.

Each component is compared at random inputs and parameters of several heads. For KEP-SVGP, SGPA and SV-DKL GPyTorch has
the same variational GP. For CGP it has the two exact GPs that determine the attention output one after the other, for
sparse CGP those with a low-rank kernel; their covariances are combined by the law of total covariance.
"""

import copy

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
Pairs = dict[str, tuple[Tensor, Tensor]]
"""Quantity → its value by this library and by GPyTorch."""


class _GP(gpytorch.models.ExactGP):
    """GP of targets ``(..., n)`` at x ``(..., n, d)``; inducing inputs make its kernel 𝒦_xz 𝒦_zz⁻¹ 𝒦_zx (DTC)."""

    def __init__(self, x: Tensor, y: Tensor, noise: Tensor, kernel: kernels.Kernel, inducing: Tensor | None = None):
        likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise.expand_as(y))
        super().__init__(x.expand(*y.shape, -1), y, likelihood)
        self.kernel = kernel if inducing is None else kernels.InducingPointKernel(kernel, inducing, likelihood)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(x.new_zeros(x.shape[:-1]), self.kernel(x))

    def log_evidence(self) -> Tensor:
        """Return log N(y; 0, 𝒦 + noise I) in nats, summed over the last dimension but one."""
        return self.likelihood(self(*self.train_inputs)).log_prob(self.train_targets).sum(-1)


class _VariationalGP(gpytorch.models.ApproximateGP):
    """GP with q(w) = N(m, T Tᵀ) ``(..., l)`` of the whitened values at inducing inputs ``(..., l, d)``."""

    def __init__(self, inducing: Tensor, loc: Tensor, tril: Tensor, kernel: kernels.Kernel):
        q = variational.CholeskyVariationalDistribution(loc.shape[-1], loc.shape[:-1])
        points = inducing.expand(*loc.shape, -1)
        super().__init__(variational.VariationalStrategy(self, points, q, False, jitter_val=0.0))
        q.variational_mean.data, q.chol_variational_covar.data = loc, tril
        self.variational_strategy.variational_params_initialized.fill_(1)
        self.kernel = kernel

    forward = _GP.forward


def gp_check(*, seed: int = 0) -> dict[tuple[str, str], tuple[float, float]]:
    """Return component and quantity → largest difference, absolute, and relative to GPyTorch's largest value.

    Args:
        seed: seed of the random inputs and parameters; PyTorch's generator is restored.
    """
    by_cholesky, dtc = settings.fast_computations(False, False, False), settings.sgpr_diagonal_correction(False)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), by_cholesky, dtc, settings.debug(False):
        torch.manual_seed(seed)
        pairs = {"KEP-SVGP": kep_svgp_pairs(), "KEP-SVGP, optimal q(u)": kep_svgp_optimum_pairs()}
        pairs |= {"SGPA, decoupled": sgpa_pairs(), "SGPA, standard": sgpa_standard_pairs(), "CGP": cgp_pairs()}
        points = 0.7 * _randn(2, HEADS, INDUCING, WIDTH)
        pairs |= {"sparse CGP": cgp_pairs(*points), "SV-DKL": sv_dkl_pairs()}
    return {
        (component, quantity): (error := (ours - theirs).abs().max().item(), error / theirs.abs().max().item())
        for component, quantities in pairs.items()
        for quantity, (ours, theirs) in quantities.items()
    }


def kep_svgp_pairs() -> Pairs:
    """Compare q(F) = N(E Λ⁻¹ m, E Λ⁻¹ S Λ⁻¹ Eᵀ) and its KL with a sparse GP with a linear kernel and Z = Λ."""
    e, lam, loc = _randn(HEADS, TOKENS, WIDTH), _randn(HEADS, WIDTH).exp(), _randn(HEADS, WIDTH, WIDTH)
    tril, inducing = _tril(HEADS, WIDTH, WIDTH), lam.diag_embed().unsqueeze(1)
    gp = _VariationalGP(inducing, loc / lam[:, None], tril / lam[:, None, :, None], _linear()).eval()
    f, kl = gp(e.unsqueeze(1)), gp.variational_strategy.kl_divergence().sum(1)
    return _moments(kep_svgp.marginals(e, lam, loc, tril), f) | {
        "KL of u": (kep_svgp.kl_divergence(loc, tril, lam), kl)
    }


def kep_svgp_optimum_pairs() -> Pairs:
    """Compare the optimal q(u) under a Gaussian likelihood with an exact GP (linear kernel on E) and its evidence."""
    e, lam, y = _randn(1, TOKENS, WIDTH), _randn(1, WIDTH).exp(), _randn(1, 1, TOKENS)
    noise, features = torch.tensor(0.3, dtype=y.dtype), e / lam
    covariance = torch.linalg.inv((lam**-2).diag_embed() + features.mT @ features / noise)
    loc, tril = y @ features @ covariance / noise, torch.linalg.cholesky(covariance).unsqueeze(1)
    moments, gp = kep_svgp.marginals(e, lam, loc, tril), _GP(e, y, noise, _linear())
    fit = dist.Normal(moments.mean, noise.sqrt()).log_prob(y).sum() - 0.5 * moments.covariance[0, 0].trace() / noise
    elbo = fit - kep_svgp.kl_divergence(loc, tril, lam)
    return {"ELBO": (elbo, gp.log_evidence())} | _moments(moments, gp.eval()(e))


def sgpa_pairs() -> Pairs:
    """Compare the decoupled form with v_γ = 0: q(f), and the KL of u, which is whitened like GPyTorch's."""
    (kernel, theirs), tokens, inducing = _kernels(), *(0.7 * _randn(HEADS, n, WIDTH) for n in (TOKENS, INDUCING))
    loc, t = _randn(HEADS, COLUMNS, INDUCING), _tril(HEADS, COLUMNS, INDUCING)
    a = sgpa.features(kernel(tokens, inducing), torch.linalg.cholesky(kernel(inducing, inducing)))
    gp, root = _VariationalGP(inducing.unsqueeze(1), loc, t, theirs).eval(), a.unsqueeze(1) @ t
    f, remainder = gp(tokens.unsqueeze(1)), sgpa.conditional_covariance(kernel(tokens, tokens), a).unsqueeze(1)
    pairs = {"mean of f": (loc @ a.mT, f.mean), "covariance of f": (root @ root.mT + remainder, f.covariance_matrix)}
    kl = kl_divergence(dist.MultivariateNormal(loc, scale_tril=t).to_event(2), priors.normal(torch.ones_like(loc)))
    return pairs | {"KL of u": (kl, gp.variational_strategy.kl_divergence().sum())}


def sgpa_standard_pairs() -> Pairs:
    """Compare SGPA's standard form: inducing inputs at the tokens, q(f) = N(𝒦 v, L T² Lᵀ) with a diagonal T."""
    (kernel, theirs), tokens = _kernels(), 0.7 * _randn(HEADS, TOKENS, WIDTH)
    k_qq, value, spread = kernel(tokens, tokens), _randn(HEADS, TOKENS, COLUMNS), _randn(HEADS, TOKENS).exp()
    whitened, tril = value.mT @ torch.linalg.cholesky(k_qq), spread.diag_embed().unsqueeze(1)
    gp = _VariationalGP(tokens.unsqueeze(1), whitened, tril.expand(-1, COLUMNS, -1, -1), theirs).eval()
    kl = sgpa.amortised_kl(value, k_qq @ value, spread), gp.variational_strategy.kl_divergence().sum()
    return {"mean of f": ((k_qq @ value).mT, gp(tokens.unsqueeze(1)).mean), "KL of g": kl}


def cgp_pairs(inducing_query: Tensor | None = None, inducing_key: Tensor | None = None) -> Pairs:
    """Compare z_q with two GPs: one at K predicts z_o at X_o, one with that mean at X_o predicts at Q and K (19-24).

    They are exact, or for sparse CGP regressions through the inducing inputs of keys and of queries (33, 55, 65-67). A
    GP at a scale of 1 sees z_k / σ_k with noise σ² / σ_k², and z_q is σ_q times what it predicts. The second GP's mean
    is linear in z_o; its matrix A_q comes from unit vectors.
    """
    query, key, latent = (0.7 * _randn(HEADS, TOKENS, WIDTH) for _ in range(3))
    fields = {"query": query, "key": key, "latent": latent, "value": _randn(HEADS, TOKENS, COLUMNS), "real": None}
    fields |= {"scales": (0.4 * _randn(2, HEADS)).exp(), "noise": 0.3 * _randn(HEADS).exp(), "count": TOKENS}
    points = {} if inducing_key is None else {"inducing_query": inducing_query, "inducing_key": inducing_key}
    law = SparseCGP(**fields, **points) if points else CGP(**fields)
    (sq, sk), noise, eye = law.scales[..., None, None], law.noise[:, None, None], torch.eye(TOKENS, dtype=query.dtype)

    def predict(x: Tensor, y: Tensor, to: Tensor, sigma2: Tensor, points: Tensor | None) -> tuple[Tensor, Tensor]:
        x, to, points = (a if a is None else a.unsqueeze(1).expand(-1, y.shape[1], -1, -1) for a in (x, to, points))
        f = _GP(x, y, sigma2, _rbf(torch.ones_like(sk[..., 0])), points).eval()(to)
        return f.mean, f.covariance_matrix[:, 0]

    z, given_key = predict(key, law.observed_key.mT / sk, latent, noise / sk**2, inducing_key)
    mean, of_query = predict(latent, z, query, noise, inducing_query)
    units, _ = predict(latent, eye.expand(HEADS, -1, -1), query, noise, inducing_query)
    of_key = sk**2 * predict(latent, z, key, noise, inducing_key)[1] + noise * eye
    of_query = sq**2 * of_query + noise * eye
    given_key = of_query + sq**2 * units.mT @ (given_key + noise * eye) @ units
    zero, x = torch.zeros_like(query[..., 0]), _randn(HEADS, TOKENS)
    pairs = {"mean of z_q": (law.mean.mT, sq * mean)}
    laws = {"z_q given z_o": (law.query_covariance, of_query), "z_k given z_o": (law.key_covariance, of_key)}
    for name, (covariance, matrix) in (laws | {"z_q given z_k": (law.predictive, given_key)}).items():
        theirs = MultivariateNormal(zero, matrix).log_prob(x)
        pairs[f"density of {name}"] = covariance.log_density(x.unsqueeze(-1)), theirs
    if inducing_key is None:
        gp = _GP(key.unsqueeze(1), law.observed_key.mT, noise, _rbf(law.scales[1].unsqueeze(1) ** 2))
        pairs["log p(z_k)"] = law.log_marginal() - law.predictive.log_peak(COLUMNS), gp.log_evidence()
    return pairs


def sv_dkl_pairs() -> Pairs:
    """Compare the marginals at features with GPyTorch's own interpolation from the grid and its lazy covariance."""
    ours, z = FeatureGPs(3, grid_size=12).double().eval(), 1.9 * torch.rand(TOKENS, 3).double() - 0.95
    for parameter in ours.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    theirs = copy.deepcopy(ours)
    theirs.variational_strategy.__class__ = variational.GridInterpolationVariationalStrategy
    marginals, expected = ours.marginals(z), theirs.marginals(z)
    return {"mean": (marginals.mean, expected.mean), "variance": (marginals.variance, expected.variance)}


def _kernels() -> tuple[ARD, kernels.Kernel]:
    """Return an ARD kernel with random parameters per head, and GPyTorch's."""
    ours = ARD(HEADS, WIDTH).double()
    for parameter in ours.parameters():
        parameter.copy_(0.3 * _randn(*parameter.shape))
    return ours, _rbf(ours.variance.unsqueeze(1), ours.log_lengthscale.exp()[:, None, None])


def _rbf(variance: Tensor, lengthscale: Tensor | float = 1.0) -> kernels.Kernel:
    """Return the kernel σ² exp(−½ Σ_i (a_i − b_i)² / ℓ_i²) of a batch of heads."""
    base = kernels.RBFKernel(ard_num_dims=WIDTH, batch_shape=variance.shape)
    kernel = kernels.ScaleKernel(base, batch_shape=variance.shape).double()
    base.lengthscale, kernel.outputscale = lengthscale, variance
    return kernel


def _linear() -> kernels.Kernel:
    return kernels.LinearKernel().double().initialize(variance=1.0)


def _moments(ours: kep_svgp.Moments, theirs: MultivariateNormal) -> Pairs:
    pairs = {"mean of F": (ours.mean, theirs.mean)}
    return pairs | {"covariance of F": (ours.covariance, theirs.covariance_matrix)}


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _tril(*shape: int) -> Tensor:
    """Return random Cholesky factors ``(*shape, shape[-1])``."""
    return 0.4 * _randn(*shape, shape[-1]).tril(-1) + torch.diag_embed((0.5 * _randn(*shape)).exp())
