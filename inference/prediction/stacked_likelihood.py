"""Stack the likelihoods of samples that were computed one after another into one distribution."""

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint


def stack(parts: Sequence[dist.TorchDistribution]) -> dist.TorchDistribution:
    """Stack S distributions of one class into one of batch shape ``(S, *batch)``.

    The result is of the same class with stacked parameters if each parameter has the batch shape; else
    :class:`Stacked`.

    Args:
        parts: distributions of batch shape ``batch``.
    """
    stacked = _stack_parameters(parts)
    return Stacked(parts) if stacked is None else stacked


def _stack_parameters(parts: Sequence[Distribution]) -> Distribution | None:
    """Return a distribution with stacked parameters; None if some parameter lacks the batch shape."""
    first, batch = parts[0], parts[0].batch_shape
    if any(type(part) is not type(first) for part in parts):
        return None
    try:
        stacked = first.expand((len(parts), *batch))  # of the new batch shape; its parameters follow
    except NotImplementedError:
        return None
    if type(stacked) is not type(first):
        return None
    for name, value in vars(first).items():
        if isinstance(value, torch.Size):
            continue
        if not all(name in vars(part) for part in parts):
            vars(stacked).pop(name, None)  # lazy property, recomputed on first access
        elif isinstance(value, Distribution):
            inner = _stack_parameters([getattr(part, name) for part in parts])
            if inner is None:
                return None
            setattr(stacked, name, inner)
        elif isinstance(value, Tensor):
            if value.shape[: len(batch)] != batch:
                return None
            setattr(stacked, name, torch.stack([getattr(part, name) for part in parts]))
        elif isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return None  # transforms, which have parameters
    return stacked


class Stacked(dist.TorchDistribution):
    """S distributions of one class as one distribution of batch shape ``(S, *batch)``.

    Args:
        parts: distributions of batch shape ``batch``.
    """

    arg_constraints = {}

    def __init__(self, parts: Sequence[dist.TorchDistribution]) -> None:
        self.parts = tuple(parts)
        super().__init__((len(parts), *parts[0].batch_shape), parts[0].event_shape, validate_args=False)

    @property
    def support(self) -> Constraint:
        """Support of the first part."""
        return self.parts[0].support

    @property
    def mean(self) -> Tensor:
        """Means ``(S, *batch, *event)``."""
        return torch.stack([part.mean for part in self.parts])

    @property
    def variance(self) -> Tensor:
        """Variances ``(S, *batch, *event)``."""
        return torch.stack([part.variance for part in self.parts])

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draw samples ``(*sample_shape, S, *batch, *event)``."""
        return torch.stack([part.sample(sample_shape) for part in self.parts], dim=len(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log densities ``(S, *batch)`` of values ``(*batch, *event)``, shared or one for each part."""
        own = len(self.batch_shape) + len(self.event_shape)
        values = value.unbind(-own) if value.dim() >= own else [value] * len(self.parts)
        return torch.stack([part.log_prob(each) for part, each in zip(self.parts, values, strict=True)])

    def cdf(self, value: Tensor) -> Tensor:
        """Distribution functions ``(S, *batch, *event)`` at values ``(*batch, *event)``."""
        return torch.stack([part.cdf(value) for part in self.parts])
