"""Likelihoods of draws that were computed one after another, as one distribution with a dimension of draws."""

import copy
from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from probattn.torch_compat import distribution_fields, set_batch_shape


def stack(parts: Sequence[dist.TorchDistribution]) -> dist.TorchDistribution:
    """Return S distributions of one kind as one of batch shape ``(S, *batch)``.

    It is of their own class, with stacked parameters, where each of these has the batch shape; else :class:`Stacked`.

    Args:
        parts: distributions of batch shape ``(*batch,)``.
    """
    joined = _joined(parts)
    return Stacked(parts) if joined is None else joined


def _joined(parts: Sequence[Distribution]) -> Distribution | None:
    first, batch = parts[0], parts[0].batch_shape
    if any(type(part) is not type(first) for part in parts):
        return None
    joined = copy.copy(first)
    for name, value in distribution_fields(first).items():
        if not all(name in vars(part) for part in parts):
            delattr(joined, name)  # computed when it is first asked for
        elif isinstance(value, Distribution):
            inner = _joined([getattr(part, name) for part in parts])
            if inner is None:
                return None
            setattr(joined, name, inner)
        elif isinstance(value, Tensor):
            if value.shape[: len(batch)] != batch:
                return None
            setattr(joined, name, torch.stack([getattr(part, name) for part in parts]))
        elif isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return None  # transforms, with parameters of their own
    set_batch_shape(joined, torch.Size((len(parts), *batch)))
    return joined


class Stacked(dist.TorchDistribution):
    """S distributions of one kind as one of batch shape ``(S, *batch)``.

    Args:
        parts: the distributions, of batch shape ``(*batch,)``.
    """

    arg_constraints = {}

    def __init__(self, parts: Sequence[dist.TorchDistribution]) -> None:
        self.parts = tuple(parts)
        super().__init__((len(parts), *parts[0].batch_shape), parts[0].event_shape, validate_args=False)

    @property
    def support(self) -> Constraint:
        """The support of the first part."""
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
        """Return draws ``(*sample_shape, S, *batch, *event)``."""
        return torch.stack([part.sample(sample_shape) for part in self.parts], dim=len(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log densities ``(S, *batch)`` of values ``(*batch, *event)``, or of one value for each part."""
        own = len(self.batch_shape) + len(self.event_shape)
        values = value.unbind(-own) if value.dim() >= own else [value] * len(self.parts)
        return torch.stack([part.log_prob(each) for part, each in zip(self.parts, values, strict=True)])

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution functions at values ``(*batch, *event)``, stacked."""
        return torch.stack([part.cdf(value) for part in self.parts])
