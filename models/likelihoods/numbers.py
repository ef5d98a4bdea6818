"""Likelihoods of real numbers."""

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from probattn.models.likelihoods.numerics import at_least_float32, inverse_softplus


class Gaussian(nn.Module):
    """Regression with homoscedastic Gaussian noise; outputs are means ``(*draws, batch, targets)``.

    Args:
        scale: initial standard deviation of the noise, in units of the targets; a sequence gives each target its own.

    Raises:
        ValueError: a scale that is not positive.
    """

    def __init__(self, scale: float | Sequence[float] = 1.0) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(_log_scale(scale))

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the targets; the mask of tokens does not matter."""
        return dist.Normal(at_least_float32(outputs), self.log_scale.exp()).to_event(1)


class HeteroscedasticGaussian(nn.Module):
    """Regression with Gaussian noise that depends on the input (Nix & Weigend, 1994).

    Outputs ``(*draws, batch, 2 · targets)`` are the means and, behind them, what the standard deviations are made of:
    ``min_scale + softplus(raw)``.

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
        """The distribution of the targets; the mask of tokens does not matter."""
        if outputs.shape[-1] % 2:
            raise ValueError(f"needs a mean and a raw scale for each target, an even number; got {outputs.shape[-1]}")
        mean, raw_scale = at_least_float32(outputs).chunk(2, -1)
        return dist.Normal(mean, self.min_scale + softplus(raw_scale)).to_event(1)


class StudentT(nn.Module):
    """Regression with heavy-tailed noise; outputs are locations ``(*draws, batch, targets)``.

    The mean exists for df > 1 and the variance for df > 2: below, predictions have NaN and infinity there, and medians,
    quantiles, intervals and log probabilities as always.

    Args:
        df: degrees of freedom, positive; where they are learned, initial ones above 1.
        scale: initial scale, in units of the targets; a sequence gives each target its own.
        learn_df: learn df = 1 + softplus(raw_df), so that a mean exists.

    Raises:
        ValueError: a scale that is not positive, or df out of bounds.
    """

    def __init__(self, df: float = 5.0, scale: float | Sequence[float] = 1.0, *, learn_df: bool = False) -> None:
        super().__init__()
        if not df > (1 if learn_df else 0):
            raise ValueError(f"df must be positive, and above 1 where it is learned; got {df}")
        self.log_scale = nn.Parameter(_log_scale(scale))
        self.fixed_df = None if learn_df else df
        self.raw_df = nn.Parameter(inverse_softplus(torch.tensor(df - 1.0))) if learn_df else None

    @property
    def df(self) -> Tensor:
        """Degrees of freedom ``()``."""
        return self.log_scale.new_tensor(self.fixed_df) if self.raw_df is None else 1 + softplus(self.raw_df)

    def forward(self, outputs: Tensor, mask: Tensor | None = None) -> dist.TorchDistribution:
        """The distribution of the targets; the mask of tokens does not matter."""
        return dist.StudentT(self.df, at_least_float32(outputs), self.log_scale.exp()).to_event(1)


def _log_scale(scale: float | Sequence[float]) -> Tensor:
    scale = torch.as_tensor(scale, dtype=torch.get_default_dtype())
    if not (scale > 0).all():
        raise ValueError(f"scale must be positive, got {scale.tolist()}")
    return scale.log()
