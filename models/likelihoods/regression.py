"""Likelihoods for regression."""

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions.transforms import SoftplusTransform
from torch.nn.functional import softplus

from probattn.functional.dtypes import at_least_float32


class Gaussian(nn.Module):
    """Homoscedastic Gaussian noise; outputs are means ``(*draws, batch, targets)``.

    Args:
        scale: initial standard deviation of the noise, in units of the targets; a sequence has one per target. None:
            one for all targets, which :func:`~probattn.inference.fit` initialises to the standard deviation of the
            training labels (see :meth:`initialise`), and which is 1 until then.

    Raises:
        ValueError: a scale that is not positive.
    """

    def __init__(self, scale: float | Sequence[float] | None = None) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(_log_scale(1.0 if scale is None else scale))
        self.needs_labels = scale is None

    def initialise(self, labels: Tensor) -> None:
        """Set a scale that was neither given nor trained to the root mean square deviation of labels from their mean.

        Args:
            labels: labels of training ``(n, targets)``.
        """
        _initialise(self, labels)

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the targets; the token mask is ignored."""
        return dist.Normal(at_least_float32(outputs), at_least_float32(self.log_scale).exp()).to_event(1)


class HeteroscedasticGaussian(nn.Module):
    """Gaussian noise that depends on the input (Nix & Weigend, 1994).

    Outputs ``(*draws, batch, 2 · targets)`` are the means, followed by the raw standard deviations: the standard
    deviation is ``min_scale + softplus(raw)``.

    Args:
        min_scale: smallest standard deviation, in units of the targets; keeps the density bounded.

    Raises:
        ValueError: min_scale not positive; in the forward pass, an odd number of outputs.
    """

    def __init__(self, min_scale: float = 1e-3) -> None:
        super().__init__()
        if not min_scale > 0:
            raise ValueError(f"min_scale must be positive, got {min_scale}")
        self.min_scale = min_scale

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the targets; the token mask is ignored."""
        if outputs.shape[-1] % 2:
            raise ValueError(f"needs a mean and a raw scale for each target, an even number; got {outputs.shape[-1]}")
        mean, raw_scale = at_least_float32(outputs).chunk(2, -1)
        return dist.Normal(mean, self.min_scale + softplus(raw_scale)).to_event(1)


class StudentT(nn.Module):
    """Heavy-tailed noise; outputs are locations ``(*draws, batch, targets)``.

    The mean exists for df > 1 and the variance for df > 2. Below, these moments of a prediction are NaN or infinite;
    medians, quantiles, intervals and log probabilities are always defined.

    Args:
        df: degrees of freedom, positive; with ``learn_df`` their initial value, above 1.
        scale: initial scale, in units of the targets; a sequence has one per target; None as for :class:`Gaussian`.
        learn_df: learn df = 1 + softplus(raw_df), so that a mean exists.

    Raises:
        ValueError: a scale that is not positive, or df out of bounds.
    """

    def __init__(
        self, df: float = 5.0, scale: float | Sequence[float] | None = None, *, learn_df: bool = False
    ) -> None:
        super().__init__()
        if not df > (1 if learn_df else 0):
            raise ValueError(f"df must be positive, and above 1 with learn_df=True; got {df}")
        self.log_scale = nn.Parameter(_log_scale(1.0 if scale is None else scale))
        self.needs_labels = scale is None
        self.fixed_df = None if learn_df else df
        self.raw_df = nn.Parameter(SoftplusTransform().inv(torch.tensor(df - 1.0))) if learn_df else None

    def initialise(self, labels: Tensor) -> None:
        """Set the scale as :meth:`Gaussian.initialise` does."""
        _initialise(self, labels)

    @property
    def df(self) -> Tensor:
        """Degrees of freedom, a scalar tensor."""
        scale = at_least_float32(self.log_scale)
        return scale.new_tensor(self.fixed_df) if self.raw_df is None else 1 + softplus(at_least_float32(self.raw_df))

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """Return the distribution of the targets; the token mask is ignored."""
        return dist.StudentT(self.df, at_least_float32(outputs), at_least_float32(self.log_scale).exp()).to_event(1)


def _log_scale(scale: float | Sequence[float]) -> Tensor:
    scale = torch.as_tensor(scale, dtype=torch.get_default_dtype())
    if not (scale > 0).all():
        raise ValueError(f"scale must be positive, got {scale.tolist()}")
    return scale.log()


@torch.no_grad()
def _initialise(likelihood: Gaussian | StudentT, labels: Tensor) -> None:
    deviation = (labels.double() - labels.double().mean(0)).square().mean().sqrt()
    if likelihood.needs_labels and not likelihood.log_scale.any() and 0 < deviation < torch.inf:
        likelihood.log_scale.fill_(deviation.log().item())
