"""A distribution of all examples of a batch as one event, for sites of examples outside a plate."""

import copy
from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints, kl_divergence, register_kl

from probattn.draws import Drawn
from probattn.examples import Layout


class JointExamples(dist.TorchDistribution):
    """Distribution whose event holds some batch dimensions of another, those of the examples first of all.

    Its batch shape is that of plates: the dimensions that stay, right-aligned with the plates.

    Args:
        base_dist: of batch shape ``(..., examples)``.
        layout: the dimensions that belong to the event.
        weight: factor on the log density of each example, or None.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True

    def __init__(
        self,
        base_dist: dist.TorchDistribution,
        layout: Layout,
        *,
        weight: Tensor | None = None,
    ) -> None:
        self.base_dist, self.layout, self.weight = base_dist, layout, weight
        sizes = tuple(base_dist.batch_shape[dim] for dim in layout.joint)
        batch_shape = plate_shape(base_dist.batch_shape, layout)
        super().__init__(batch_shape, torch.Size(sizes) + base_dist.event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Support of the base distribution, with the dimensions of the examples as event dimensions."""
        return constraints.independent(self.base_dist.support, len(self.layout.joint))

    @property
    def mean(self) -> Tensor:
        """Mean ``(*batch, *event)``."""
        return self.joined(self.base_dist.mean)

    @property
    def variance(self) -> Tensor:
        """Variance of every scalar."""
        return self.joined(self.base_dist.variance)

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "JointExamples":
        """Return the same distribution with a larger batch shape."""
        base_shape = examples_shape(batch_shape, self.base_dist.batch_shape, self.layout)
        base_dist = copy.copy(self.base_dist)  # some distributions of Pyro expand in place
        return JointExamples(base_dist.expand(base_shape), self.layout, weight=self.weight)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Sample ``(*sample_shape, *batch, *event)``."""
        shape = torch.Size(sample_shape)
        return self.joined(self.base_dist.rsample(shape), shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density in nats, summed over the examples, ``(*batch,)``."""
        return total(self.base_dist.log_prob(self.separated(value)), self.layout, self.weight)

    def joined(self, values: Tensor, sample_shape: torch.Size | tuple = ()) -> Tensor:
        """Return values of the base distribution ``(..., examples, *base event)`` as ``(*batch, *event)``.

        Args:
            values: with ``sample_shape`` on the left.
            sample_shape: of the values.
        """
        event_dim = self.base_dist.event_dim
        dims = [dim - event_dim for dim in self.layout.joint]
        ends = list(range(-len(dims) - event_dim, -event_dim))
        sample_shape = torch.Size(sample_shape)
        values = values.expand(sample_shape + self.base_dist.batch_shape + self.base_dist.event_shape)
        return values.movedim(dims, ends).reshape(sample_shape + self.batch_shape + self.event_shape)

    def separated(self, values: Tensor) -> Tensor:
        """Return values ``(*batch, *event)`` as those of the base distribution, the inverse of :meth:`joined`."""
        batch_shape = values.shape[: values.dim() - self.event_dim]
        base_shape = examples_shape(batch_shape, self.base_dist.batch_shape, self.layout)
        event_dim = self.base_dist.event_dim
        left = [size for dim, size in with_dims(base_shape) if dim not in self.layout.joint]
        values = values.reshape(*left, *self.event_shape)
        dims = [dim - event_dim for dim in self.layout.joint]
        ends = list(range(-len(dims) - event_dim, -event_dim))
        return values.movedim(ends, dims)


def with_dims(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return dimensions, counted from the right, with their sizes."""
    return list(zip(range(-len(shape), 0), shape, strict=True))


def plate_shape(batch_shape: Sequence[int], layout: Layout) -> torch.Size:
    """Return the shape in plates of a batch ``(..., examples)``, whose joint dimensions have size 1 there."""
    sizes = [1 if dim in layout.joint else size for dim, size in with_dims(batch_shape)]
    if layout.is_shifted:
        sizes = sizes[:-1]
    while sizes and sizes[0] == 1:
        sizes = sizes[1:]
    return torch.Size(sizes)


def examples_shape(plates: Sequence[int], batch_shape: Sequence[int], layout: Layout) -> torch.Size:
    """Return the batch shape of a distribution of examples in a shape of plates, the inverse of :func:`plate_shape`."""
    full = [*plates, 1] if layout.is_shifted else list(plates)
    full = [1] * (len(batch_shape) - len(full)) + full
    for dim in layout.joint:
        full[dim] = batch_shape[dim]
    return torch.Size(full)


def total(values: Tensor, layout: Layout, weight: Tensor | None = None) -> Tensor:
    """Return values of examples ``(..., examples)`` summed over the joint dimensions, in the shape of plates.

    Args:
        values: one for each example.
        layout: the joint dimensions.
        weight: factor of each example; where it is 0, its value does not count, whatever it is.
    """
    if weight is not None:
        values = (values * weight).where(weight != 0, 0.0)
    return values.sum(layout.joint).reshape(plate_shape(values.shape, layout))


@register_kl(JointExamples, JointExamples)
def _kl_joint_examples(q: JointExamples, p: JointExamples) -> Tensor:
    base = p.base_dist.base_dist if isinstance(p.base_dist, Drawn) else p.base_dist
    kl = kl_divergence(q.base_dist, base)
    shape = torch.broadcast_shapes(q.base_dist.batch_shape, p.base_dist.batch_shape)
    return total(kl.expand(shape), p.layout, p.weight)
