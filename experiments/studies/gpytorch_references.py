"""Reference Gaussian processes of GPyTorch in float64: exact, low-rank and variational."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import InducingPointKernel, Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor


class Law(NamedTuple):
    """Mean ``(n,)`` and covariance ``(n, n)`` of function values; KL of q(u) to its prior, in nats, if there is one."""

    mean: Tensor
    covariance: Tensor
    kl: Tensor | None = None


class _ExactGP(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor, *, kernel: Kernel, noise: float, inducing: Tensor | None) -> None:
        likelihood = FixedNoiseGaussianLikelihood(torch.full_like(y, noise))
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel if inducing is None else InducingPointKernel(kernel, inducing, likelihood)
        self.double()

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _VariationalGP(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: Tensor, kernel: Kernel) -> None:
        posterior = CholeskyVariationalDistribution(len(inducing))
        strategy = VariationalStrategy(self, inducing, posterior, learn_inducing_locations=False, jitter_val=0.0)
        super().__init__(strategy)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel
        self.double()

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


@torch.no_grad()
def exact(x: Tensor, y: Tensor, at: Tensor, *, kernel: Kernel, noise: float) -> Law:
    """Return the posterior of the latent function at test inputs ``(m, d)``, from an ``ExactGP`` with mean 0.

    The training data are inputs ``(n, d)`` and targets ``(n,)``; ``noise`` is a variance.
    """
    return _law(_ExactGP(x, y, kernel=kernel, noise=noise, inducing=None), at)


@torch.no_grad()
def low_rank(x: Tensor, y: Tensor, at: Tensor, *, kernel: Kernel, noise: float, inducing: Tensor) -> Law:
    """Return the posterior of a GP with kernel 𝒦_xz 𝒦_zz⁻¹ 𝒦_zx at all inputs (DTC), from an ``InducingPointKernel``.

    As :func:`exact`, with inducing inputs Z ``(l, d)``. GPyTorch's correction of the diagonal, which would result in
    FITC, is off.
    """
    with gpytorch.settings.sgpr_diagonal_correction(False):
        return _law(_ExactGP(x, y, kernel=kernel, noise=noise, inducing=inducing), at)


@torch.no_grad()
def log_evidence(x: Tensor, y: Tensor, *, kernel: Kernel, noise: float) -> Tensor:
    """Return log N(y; 0, 𝒦 + noise I) in nats, from an ``ExactMarginalLogLikelihood``."""
    gp = _ExactGP(x, y, kernel=kernel, noise=noise, inducing=None).train()
    with _by_cholesky():
        return gpytorch.mlls.ExactMarginalLogLikelihood(gp.likelihood, gp)(gp(x), y) * len(y)


@torch.no_grad()
def variational(loc: Tensor, tril: Tensor, at: Tensor, *, kernel: Kernel, inducing: Tensor) -> Law:
    """Return q(f) at test inputs ``(n, d)`` and its KL, from a whitened ``VariationalStrategy`` without jitter.

    q(w) = N(m, T Tᵀ) with ``loc`` m ``(l,)`` and ``tril`` T ``(l, l)``, where u = L w, L Lᵀ = 𝒦_zz, are the values at
    the inducing inputs Z ``(l, d)``.
    """
    gp = _VariationalGP(inducing, kernel)
    strategy = gp.variational_strategy
    strategy._variational_distribution.variational_mean.copy_(loc)
    strategy._variational_distribution.chol_variational_covar.copy_(tril)
    strategy.variational_params_initialized.fill_(1)
    law = _law(gp, at)
    with _by_cholesky():
        return law._replace(kl=strategy.kl_divergence())


def rbf(*, lengthscale: Tensor | float = 1.0, variance: float | Tensor = 1.0) -> Kernel:
    """Return the kernel σ² exp(−½ Σ_i (a_i − b_i)² / ℓ_i²)."""
    lengthscale, variance = (torch.as_tensor(each, dtype=torch.float64) for each in (lengthscale, variance))
    base = gpytorch.kernels.RBFKernel(ard_num_dims=len(lengthscale) if lengthscale.dim() else None).double()
    kernel = gpytorch.kernels.ScaleKernel(base).double()
    base.lengthscale, kernel.outputscale = lengthscale, variance
    return kernel


def linear() -> Kernel:
    """Return the kernel aᵀ b."""
    kernel = gpytorch.kernels.LinearKernel().double()
    kernel.variance = 1.0
    return kernel


def _law(gp: gpytorch.Module, at: Tensor) -> Law:
    gp.eval()
    with _by_cholesky():
        posterior = gp(at)
        return Law(posterior.mean, posterior.covariance_matrix)


@contextmanager
def _by_cholesky() -> Iterator[None]:
    """Use Cholesky factors instead of iterative solvers, and allow test inputs that equal the training inputs."""
    with gpytorch.settings.fast_computations(False, False, False), gpytorch.settings.debug(False):
        yield
