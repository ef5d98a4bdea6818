"""Likelihoods of numbers: Gaussian and Student noise, and counts."""

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions.transforms import SoftplusTransform
from torch.nn.functional import softplus

from probattn.attention.options import check_positive
from probattn.functional.dtypes import at_least_float32
from probattn.models.label_distributions import Likelihood

Scale = float | Sequence[float] | None
softplus_inverse = SoftplusTransform().inv


class Scaled(Likelihood):
    """Base of likelihoods with a noise scale that does not depend on the input."""

    def __init__(self, scale: Scale = None) -> None:
        super().__init__()
        initial = torch.as_tensor(1.0 if scale is None else scale, dtype=torch.get_default_dtype())
        if not (initial > 0).all():
            raise ValueError(f"scale must be positive, got {scale}")
        self.log_scale = nn.Parameter(initial.log())
        self.needs_labels = scale is None

    @property
    def scale(self) -> Tensor:
        """Scale of the noise, a scalar tensor or ``(targets,)``."""
        return at_least_float32(self.log_scale).exp()

    @torch.no_grad()
    def initialise(self, labels: Tensor) -> None:
        """Set a scale that was neither given nor trained to the root mean square deviation of
        labels from their mean.

        Args:
            labels: labels of training ``(n, targets)``.
        """
        deviation = (labels.double() - labels.double().mean(0)).square().mean().sqrt()
        if self.needs_labels and not self.log_scale.any() and 0 < deviation < torch.inf:
            self.log_scale.fill_(deviation.log().item())


class Gaussian(Scaled):
    """Homoscedastic Gaussian noise; outputs are means ``(*draws, batch, targets)``.

    Args:
        scale: initial standard deviation of the noise, in units of the targets; a sequence has one
            per target. None: one for all targets, which :func:`~probattn.inference.fit` initialises
            to the standard deviation of the training labels (see :meth:`initialise`), and which is
            1 until then.

    Raises:
        ValueError: a scale that is not positive.
    """

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the targets."""
        return dist.Normal(outputs, self.scale).to_event(1)


class HeteroscedasticGaussian(Likelihood):
    """Gaussian noise that depends on the input (Nix & Weigend, 1994).

    Outputs ``(*draws, batch, 2 · targets)`` are the means, followed by the raw standard deviations:
    the standard deviation is ``min_scale + softplus(raw)``.

    Args:
        min_scale: smallest standard deviation, in units of the targets; keeps the density bounded.

    Raises:
        ValueError: min_scale not positive; in the forward pass, an odd number of outputs.
    """

    def __init__(self, min_scale: float = 1e-3) -> None:
        super().__init__()
        check_positive(min_scale=min_scale)
        self.min_scale = min_scale

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the targets."""
        if outputs.shape[-1] % 2:
            raise ValueError(
                "needs a mean and a raw scale for each target, an even number; got "
                f"{outputs.shape[-1]}"
            )
        mean, raw_scale = outputs.chunk(2, -1)
        return dist.Normal(mean, self.min_scale + softplus(raw_scale)).to_event(1)


class StudentT(Scaled):
    """Heavy-tailed noise; outputs are locations ``(*draws, batch, targets)``.

    The mean exists for df > 1 and the variance for df > 2. Below, these moments of a prediction are
    NaN or infinite; medians, quantiles, intervals and log probabilities are always defined.

    Args:
        df: degrees of freedom, positive; with ``learn_df`` their initial value, above 1.
        scale: initial scale, in units of the targets; a sequence has one per target; None as for
            :class:`Gaussian`.
        learn_df: learn df = 1 + softplus(raw_df), so that a mean exists.

    Raises:
        ValueError: a scale that is not positive, or df out of bounds.
    """

    def __init__(self, df: float = 5.0, scale: Scale = None, *, learn_df: bool = False) -> None:
        super().__init__(scale)
        if not df > (1 if learn_df else 0):
            raise ValueError(f"df must be positive, and above 1 with learn_df=True; got {df}")
        self.fixed_df = None if learn_df else df
        raw = softplus_inverse(torch.tensor(df - 1.0))
        self.raw_df = nn.Parameter(raw) if learn_df else None

    @property
    def df(self) -> Tensor:
        """Degrees of freedom, a scalar tensor."""
        if self.raw_df is None:
            return self.scale.new_tensor(self.fixed_df)
        return 1 + softplus(at_least_float32(self.raw_df))

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the targets."""
        return dist.StudentT(self.df, outputs, self.scale).to_event(1)


class Poisson(Likelihood):
    """Counts with variance equal to their mean; outputs are log rates
    ``(*draws, batch, targets)``."""

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the counts."""
        rate = outputs.exp()
        return dist.Poisson(rate.clamp(min=torch.finfo(rate.dtype).tiny)).to_event(1)


class NegativeBinomial(Likelihood):
    """Overdispersed counts; outputs are log means ``(*draws, batch, targets)``.

    The variance is μ + μ²/r with a learned concentration r shared by all examples (NB2; Cameron &
    Trivedi, 2013); the limit r → ∞ is Poisson.

    Args:
        concentration: initial r, positive.

    Raises:
        ValueError: a concentration that is not positive.
    """

    def __init__(self, concentration: float = 1.0) -> None:
        super().__init__()
        check_positive(concentration=concentration)
        self.raw_concentration = nn.Parameter(softplus_inverse(torch.tensor(float(concentration))))

    @property
    def concentration(self) -> Tensor:
        """Concentration r, a scalar tensor."""
        return softplus(at_least_float32(self.raw_concentration))

    def distribution(self, outputs: Tensor) -> dist.TorchDistribution:
        """Return the distribution of the counts."""
        concentration = self.concentration
        # log(μ/r), the log odds of one more count
        logits = outputs - concentration.log()
        return dist.NegativeBinomial(concentration, logits=logits).to_event(1)
