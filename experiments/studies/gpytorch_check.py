"""Comparison of the layers' closed forms with GPyTorch's Gaussian processes in float64: ``probattn check-gp``.

Each component is compared at random inputs, heads and parameters. For KEP-SVGP, SGPA and SV-DKL GPyTorch has the same
variational GP. For CGP it has the two exact GPs that determine the attention output one after the other, and for sparse
CGP those with a low-rank kernel; their covariances are combined by the law of total covariance.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import pyro.distributions as dist
import torch
from gpytorch.variational import GridInterpolationVariationalStrategy
from pyro.distributions.kl import kl_divergence
from torch import Tensor

from probattn import priors
from probattn.attention.kernels import ARD
from probattn.experiments.studies import gpytorch_references as gpytorch
from probattn.experiments.studies.gpytorch_references import Law
from probattn.functional import kep_svgp, sgpa
from probattn.functional.cgp import CGP
from probattn.functional.correlated import Correlated
from probattn.functional.gaussian import Dense, LowRank
from probattn.functional.sparse_cgp import SparseCGP
from probattn.inference.methods.sv_dkl_gps import FeatureGPs

TOLERANCE = 1e-9
"""Largest relative difference that passes."""
HEADS, TOKENS, WIDTH, COLUMNS, INDUCING = 3, 7, 4, 2, 5
Pairs = Iterator[tuple[str, Tensor, Tensor]]
"""Quantities of one head or output, by name, computed by this library and by GPyTorch."""


@dataclass(frozen=True)
class Difference:
    """Largest difference to GPyTorch over heads and outputs; relative to GPyTorch's largest absolute value."""

    component: str
    quantity: str
    absolute: float
    relative: float

    @property
    def passes(self) -> bool:
        """True if the difference is at most :data:`TOLERANCE`; NaN is not."""
        return self.relative <= TOLERANCE


def gp_check(*, seed: int = 0) -> list[Difference]:
    """Return the differences of all quantities of all components.

    Args:
        seed: seed of the random inputs and parameters; PyTorch's generator is restored.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        return [difference for name, pairs in COMPONENTS.items() for difference in _largest(name, pairs())]


def kep_svgp_pairs() -> Pairs:
    """Compare q(F) = N(E Λ⁻¹ m, E Λ⁻¹ S Λ⁻¹ Eᵀ) and its KL with a sparse GP with a linear kernel and Z = Λ."""
    e, lam, loc = _randn(HEADS, TOKENS, WIDTH), _randn(HEADS, WIDTH).exp(), _randn(HEADS, WIDTH, WIDTH)
    scale_tril = _tril(HEADS, WIDTH, WIDTH)
    moments, kl = kep_svgp.marginals(e, lam, loc, scale_tril), kep_svgp.kl_divergence(loc, scale_tril, lam)
    for h in range(HEADS):
        whitened = loc[h] / lam[h], scale_tril[h] / lam[h].unsqueeze(-1)
        outputs = [
            gpytorch.variational(m, tril, e[h], kernel=gpytorch.linear(), inducing=lam[h].diag())
            for m, tril in zip(*whitened, strict=True)
        ]
        for d, output in enumerate(outputs):
            yield "mean of F", moments.mean[h, d], output.mean
            yield "covariance of F", moments.covariance[h, d], output.covariance
        yield "KL of u", kl[h], sum(output.kl for output in outputs)


def kep_svgp_optimum_pairs() -> Pairs:
    """Compare the optimal q(u) under a Gaussian likelihood with an exact GP (linear kernel on E) and its evidence."""
    e, lam, y, noise = _randn(1, TOKENS, WIDTH), _randn(1, WIDTH).exp(), _randn(TOKENS), 0.3
    whitened = e[0] / lam[0]
    covariance = torch.linalg.inv(torch.diag(lam[0] ** -2) + whitened.T @ whitened / noise)
    loc = (covariance @ whitened.T @ y / noise).view(1, 1, -1)
    scale_tril = torch.linalg.cholesky(covariance).view(1, 1, WIDTH, WIDTH)
    moments = kep_svgp.marginals(e, lam, loc, scale_tril)
    theirs = gpytorch.exact(e[0], y, e[0], kernel=gpytorch.linear(), noise=noise)
    yield "mean of F", moments.mean[0, 0], theirs.mean
    yield "covariance of F", moments.covariance[0, 0], theirs.covariance
    log_likelihood = torch.distributions.Normal(moments.mean[0, 0], noise**0.5).log_prob(y).sum()
    elbo = log_likelihood - 0.5 * moments.covariance[0, 0].trace() / noise
    elbo = elbo - kep_svgp.kl_divergence(loc, scale_tril, lam)[0]
    yield "ELBO", elbo, gpytorch.log_evidence(e[0], y, kernel=gpytorch.linear(), noise=noise)


def sgpa_pairs() -> Pairs:
    """Compare the decoupled form with v_γ = 0: q(f), and the KL of u, which is whitened like GPyTorch's."""
    kernel = _ard()
    tokens, inducing = 0.7 * _randn(HEADS, TOKENS, WIDTH), 0.7 * _randn(HEADS, INDUCING, WIDTH)
    tril = torch.linalg.cholesky(kernel(inducing, inducing))
    a, k_qq = sgpa.features(kernel(tokens, inducing), tril), kernel(tokens, tokens)
    remainder = sgpa.conditional_covariance(k_qq, a)
    loc, t = _randn(HEADS, COLUMNS, INDUCING), _tril(HEADS, COLUMNS, INDUCING)
    posterior = dist.MultivariateNormal(loc, scale_tril=t).to_event(2)
    kl = kl_divergence(posterior, priors.normal(torch.ones_like(loc)))
    totals = 0.0
    for h, d in product(range(HEADS), range(COLUMNS)):
        theirs = gpytorch.variational(loc[h, d], t[h, d], tokens[h], kernel=_head(kernel, h), inducing=inducing[h])
        yield "mean of f", a[h] @ loc[h, d], theirs.mean
        yield "covariance of f", a[h] @ t[h, d] @ t[h, d].T @ a[h].T + remainder[h], theirs.covariance
        totals = totals + theirs.kl
    yield "KL of u", kl, totals


def sgpa_standard_pairs() -> Pairs:
    """Compare the standard form: inducing inputs at the tokens, q(f) = N(𝒦 v, L T² Lᵀ) with a diagonal T."""
    kernel, tokens = _ard(), 0.7 * _randn(HEADS, TOKENS, WIDTH)
    k_qq, value, spread = kernel(tokens, tokens), _randn(HEADS, TOKENS, COLUMNS), _randn(HEADS, TOKENS).exp()
    tril, mean = torch.linalg.cholesky(k_qq), k_qq @ value
    totals = 0.0
    for h, d in product(range(HEADS), range(COLUMNS)):
        whitened, kernel_h = tril[h].T @ value[h, :, d], _head(kernel, h)
        theirs = gpytorch.variational(whitened, spread[h].diag(), tokens[h], kernel=kernel_h, inducing=tokens[h])
        yield "mean of f", mean[h, :, d], theirs.mean
        totals = totals + theirs.kl
    yield "KL of g", sgpa.amortised_kl(value, mean, spread), totals


def cgp_pairs() -> Pairs:
    """Compare with two exact GPs: one at K predicts at X_o, one with that mean at X_o predicts at Q and K (19-24)."""
    law = CGP(**_inputs())
    kernel = gpytorch.rbf()

    def step(h: int, x: Tensor, y: Tensor, at: Tensor, noise: float, of: str) -> Law:
        return gpytorch.exact(x, y, at, kernel=kernel, noise=noise)

    yield from _two_steps(law, step)
    for h in range(HEADS):
        scale, noise = law.scales[1, h].item(), law.noise[h].item()
        options = {"kernel": gpytorch.rbf(variance=scale**2), "noise": noise}
        theirs = [gpytorch.log_evidence(law.key[h], column, **options) for column in law.observed_key[h].T]
        predictive = law.predictive.log_peak(COLUMNS)[h]
        yield "log p(z_k)", law.log_marginal()[h] - predictive, sum(theirs)


def sparse_cgp_pairs() -> Pairs:
    """Compare with two sparse regressions: z_k → z_o through Z_ℓ, z_o → z_q through Z_m (33, 55, 65-67)."""
    inducing = {name: 0.7 * _randn(HEADS, INDUCING, WIDTH) for name in ("inducing_query", "inducing_key")}
    law = SparseCGP(**_inputs(), **inducing)

    def step(h: int, x: Tensor, y: Tensor, at: Tensor, noise: float, of: str) -> Law:
        points = law.inducing_query[h] if of == "query" else law.inducing_key[h]
        return gpytorch.low_rank(x, y, at, kernel=gpytorch.rbf(), noise=noise, inducing=points)

    yield from _two_steps(law, step)


def sv_dkl_pairs() -> Pairs:
    """Compare the marginals at features with GPyTorch's own interpolation from the grid and its lazy covariance."""
    ours = FeatureGPs(3, grid_size=12).double().eval()
    for parameter in ours.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    theirs = copy.deepcopy(ours)
    strategy = theirs.variational_strategy
    strategy.forward = GridInterpolationVariationalStrategy.forward.__get__(strategy)
    z = 1.9 * torch.rand(TOKENS, 3, dtype=torch.float64) - 0.95
    found, expected = ours.marginals(z), theirs.marginals(z)
    yield "mean", found.mean, expected.mean
    yield "variance", found.variance, expected.variance


COMPONENTS: dict[str, Callable[[], Pairs]] = {
    "KEP-SVGP": kep_svgp_pairs,
    "KEP-SVGP, optimal q(u)": kep_svgp_optimum_pairs,
    "SGPA, decoupled": sgpa_pairs,
    "SGPA, standard": sgpa_standard_pairs,
    "CGP": cgp_pairs,
    "sparse CGP": sparse_cgp_pairs,
    "SV-DKL": sv_dkl_pairs,
}


def _two_steps(law: Correlated, step: Callable[..., Law]) -> Pairs:
    """Compare mean and covariances of z_q, from a posterior of z_o given z_k, then of z_q (and z_k) given z_o.

    Cross-covariances carry σ_q, σ_k once: a GP at a scale of 1 sees z_k / σ_k with noise σ² / σ_k², and z_q is σ_q
    times what it predicts. The second GP's mean is linear in z_o; its matrix A_q comes from unit vectors.
    """
    covariances = {name: _dense(getattr(law, name)) for name in ("query_covariance", "key_covariance", "predictive")}
    eye = torch.eye(TOKENS, dtype=torch.float64)
    for h in range(HEADS):
        (sq, sk), noise = law.scales[:, h].tolist(), law.noise[h].item()
        query, key, latent = law.query[h], law.key[h], law.latent[h]
        of_latent = [step(h, key, z / sk, latent, noise / sk**2, "key") for z in law.observed_key[h].T]
        of_query = [step(h, latent, z, query, noise, "query") for z in eye]
        a_q = sq * torch.stack([each.mean for each in of_query], dim=-1)
        of_key = step(h, latent, eye[0], key, noise, "key")
        for column, posterior in enumerate(of_latent):
            twice = step(h, latent, posterior.mean, query, noise, "query")
            yield "mean of z_q", law.mean[h, :, column], sq * twice.mean
        sigma_q = sq**2 * of_query[0].covariance + noise * eye
        yield "covariance of z_q given z_o", covariances["query_covariance"][h], sigma_q
        yield "covariance of z_k given z_o", covariances["key_covariance"][h], sk**2 * of_key.covariance + noise * eye
        of_noisy = of_latent[0].covariance + noise * eye
        yield "covariance of z_q given z_k", covariances["predictive"][h], sigma_q + a_q @ of_noisy @ a_q.T


def _largest(component: str, pairs: Pairs) -> list[Difference]:
    """Return the largest difference of each quantity, in order of first occurrence."""
    found: dict[str, Difference] = {}
    for quantity, ours, theirs in pairs:
        absolute = (ours - theirs).abs().max().item()
        relative = absolute / theirs.abs().max().item()
        known = found.get(quantity)
        if known is None or not relative <= known.relative:
            found[quantity] = Difference(component, quantity, absolute, relative)
    return list(found.values())


def _inputs() -> dict[str, Tensor | int | None]:
    """Return the fields that dense and sparse CGP share, with a scale and a noise per head."""
    query, key, latent = (0.7 * _randn(HEADS, TOKENS, WIDTH) for _ in range(3))
    scales, noise = 0.4 * _randn(2, HEADS), 0.5 * _randn(HEADS)
    return {
        "query": query,
        "key": key,
        "latent": latent,
        "value": _randn(HEADS, TOKENS, COLUMNS),
        "scales": scales.exp(),
        "noise": 0.3 * noise.exp(),
        "real": None,
        "count": TOKENS,
    }


def _dense(covariance: Dense | LowRank) -> Tensor:
    if isinstance(covariance, Dense):
        return covariance.tril @ covariance.tril.mT
    return covariance.factor @ covariance.factor.mT + torch.diag_embed(covariance.noise.expand(covariance.shape))


def _ard() -> ARD:
    """Return an ARD kernel with random parameters per head."""
    kernel = ARD(HEADS, WIDTH).double()
    kernel.log_lengthscale.copy_(0.3 * _randn(HEADS, WIDTH))
    kernel.log_variance.copy_(0.3 * _randn(HEADS))
    return kernel


def _head(kernel: ARD, h: int) -> gpytorch.Kernel:
    return gpytorch.rbf(lengthscale=kernel.log_lengthscale[h].exp(), variance=kernel.variance[h])


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _tril(*shape: int) -> Tensor:
    """Return random Cholesky factors ``(*shape, shape[-1])``."""
    return 0.4 * _randn(*shape, shape[-1]).tril(-1) + torch.diag_embed((0.5 * _randn(*shape)).exp())
