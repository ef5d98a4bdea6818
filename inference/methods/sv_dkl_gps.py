"""Gaussian processes of SV-DKL in GPyTorch: one per feature, and the softmax likelihood of their mixture."""

from typing import Any

import torch
from gpytorch import kernels, likelihoods, variational
from gpytorch.distributions import MultivariateNormal
from gpytorch.means import ZeroMean
from gpytorch.models import ApproximateGP
from gpytorch.utils.grid import ScaleToBounds
from linear_operator.operators import DiagLinearOperator
from torch import Tensor, nn

BOUNDS = (-1.0, 1.0)


class FeatureGPs(ApproximateGP):
    """D independent GPs, each a function of one feature, with an RBF kernel of its own.

    They share one grid of inducing points. q(u) is initialised at the identity, f(z) = z, with the prior's covariance.
    Calling it on features ``(n, D)`` within :data:`BOUNDS` returns the marginals of shape ``(n, D)``.

    Args:
        num_features: D.
        grid_size: inducing points of each GP.
    """

    def __init__(self, num_features: int, *, grid_size: int) -> None:
        batch = torch.Size([num_features])
        posterior = variational.CholeskyVariationalDistribution(grid_size, batch_shape=batch)
        grid = MarginalGridStrategy(self, grid_size, [BOUNDS], posterior)
        super().__init__(variational.IndependentMultitaskVariationalStrategy(grid, num_tasks=num_features))
        self.mean = ZeroMean()
        self.kernel = kernels.ScaleKernel(kernels.RBFKernel(batch_shape=batch), batch_shape=batch)
        with torch.no_grad():
            posterior.initialize_variational_distribution(grid.prior_distribution)
            posterior.variational_mean.copy_(grid.grid.mT.expand(num_features, grid_size))
            grid.variational_params_initialized.fill_(1)

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Prior of all GPs at inputs ``(..., n, 1)``."""
        return MultivariateNormal(self.mean(x), self.kernel(x))

    def __call__(self, z: Tensor, **options: Any) -> MultivariateNormal:
        """Posterior q(f) at features ``(n, D)``."""
        return super().__call__(z.mT.unsqueeze(-1), **options)


class MarginalGridStrategy(variational.GridInterpolationVariationalStrategy):
    """GPyTorch's grid interpolation, without covariances between examples.

    A softmax likelihood needs marginals only, which dense weights compute many times faster than a lazy matrix.
    """

    def forward(self, x: Tensor, *args: Any, inducing_values: Tensor, **options: Any) -> MultivariateNormal:
        """Posterior q(f) at inputs ``(D, n, 1)``: W m and the diagonal of W S Wᵀ."""
        indices, values = self._compute_grid(x)
        weights = values.new_zeros(*values.shape[:-1], len(self.grid)).scatter_add(-1, indices, values)
        mean = (weights @ inducing_values.unsqueeze(-1)).squeeze(-1)
        root = options["variational_inducing_covar"].cholesky().to_dense()
        return MultivariateNormal(mean, DiagLinearOperator((weights @ root).square().sum(-1)))


class MixedSoftmax(likelihoods.Likelihood):
    """Softmax likelihood of a linear mixture of the GPs (Wilson et al., 2016).

    The mixture is initialised as the pretrained last layer: GPs at the identity yield the network's logits. GPyTorch's
    ``SoftmaxLikelihood`` is not used because it confuses a batch of D examples with its transpose.

    Args:
        head: the last layer, which is copied.
        scale: maps its features into the bounds.
    """

    def __init__(self, head: nn.Linear, scale: ScaleToBounds) -> None:
        super().__init__()
        low, high = scale(torch.stack([scale.min_val, scale.max_val]))
        unit = (scale.max_val - scale.min_val) / (high - low)
        centre = scale.min_val - low * unit
        self.mixing = nn.utils.skip_init(nn.Linear, head.in_features, head.out_features)
        with torch.no_grad():  # feature = centre + unit · z
            self.mixing.weight.copy_(head.weight * unit)
            self.mixing.bias.copy_(head(centre.expand(head.in_features)))

    def forward(self, function_samples: Tensor, *args: Any, **options: Any) -> torch.distributions.Categorical:
        """Distribution of the class given values of the GPs ``(..., D)``."""
        return torch.distributions.Categorical(logits=self.mixing(function_samples), validate_args=False)
