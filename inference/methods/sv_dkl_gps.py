"""Gaussian processes of SV-DKL in GPyTorch, one per feature."""

from typing import Any

import torch
from gpytorch import kernels, variational
from gpytorch.distributions import MultivariateNormal
from gpytorch.means import ZeroMean
from gpytorch.models import ApproximateGP
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

BOUNDS = (-1.0, 1.0)


class FeatureGPs(ApproximateGP):
    """D independent GPs, each a function of one feature, with an RBF kernel of its own.

    They share one grid of inducing points. q(u) is initialised at the identity, f(z) = z, with the
    prior's covariance. It is ill-conditioned, since neighbours on the grid are almost equal, so
    the GPs are in float64, whatever the dtype of the features.

    Args:
        num_features: D.
        grid_size: inducing points of each GP, at least 4.
    """

    def __init__(self, num_features: int, *, grid_size: int = 32) -> None:
        batch = torch.Size([num_features])
        posterior = variational.CholeskyVariationalDistribution(grid_size, batch_shape=batch)
        strategy = MarginalGridStrategy(self, grid_size, [BOUNDS], posterior)
        super().__init__(strategy)
        self.mean = ZeroMean()
        self.kernel = kernels.ScaleKernel(kernels.RBFKernel(batch_shape=batch), batch_shape=batch)
        self.double()
        with torch.no_grad():
            posterior.initialize_variational_distribution(strategy.prior_distribution)
            posterior.variational_mean.copy_(strategy.grid.mT.expand(num_features, grid_size))
            strategy.variational_params_initialized.fill_(1)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Prior of all GPs at inputs ``(..., n, 1)``."""
        return MultivariateNormal(self.mean(x), self.kernel(x))

    def marginals(self, z: Tensor) -> torch.distributions.Normal:
        """Marginals of q(f) at features ``(n, D)`` within :data:`BOUNDS`.

        Returns:
            Batch shape ``(n, D)``, in the features' dtype.
        """
        f = self(z.double().mT.unsqueeze(-1))
        mean = f.mean.mT.to(z)
        stddev = f.stddev.mT.to(z)
        return torch.distributions.Normal(mean, stddev)


class MarginalGridStrategy(variational.GridInterpolationVariationalStrategy):
    """GPyTorch's grid interpolation, without covariances between examples.

    A softmax likelihood needs marginals only, which dense weights compute many times faster than a
    lazy matrix.
    """

    def forward(
        self, x: Tensor, *args: Any, inducing_values: Tensor, **options: Any
    ) -> MultivariateNormal:
        """Posterior q(f) at inputs ``(D, n, 1)``: W m and the diagonal of W S Wᵀ."""
        indices, values = self._compute_grid(x)
        weights = values.new_zeros(*values.shape[:-1], len(self.grid)).scatter_add(
            -1, indices, values
        )
        mean = (weights @ inducing_values.unsqueeze(-1)).squeeze(-1)
        root = options["variational_inducing_covar"].cholesky().to_dense()
        return MultivariateNormal(mean, DiagLinearOperator((weights @ root).square().sum(-1)))
