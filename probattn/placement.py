"""Placement of sites in plates: those of examples in their plate, or outside any, where all
examples are one event; global ones outside it, their values right-aligned with batches."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor
from torch.distributions import constraints, kl_divergence, register_kl

from probattn.examples import (
    PLATED,
    Layout,
    handlers_of_examples,
    is_shifted,
    layout,
    weight_of,
)
from probattn.pyro_internals import HANDLERS, without_handlers


class Placement(NamedTuple):
    """Place of a site in the active plates.

    Args:
        layout: the place of its batch.
        scale: factor on its log density.
        example_weights: the same for each example, ``(batch,)``, where they are one event.
        handlers: active handlers whose factors are in ``example_weights``.
    """

    layout: Layout
    scale: float | Tensor = 1.0
    example_weights: Tensor | None = None
    handlers: Sequence[Messenger] = ()

    def joint(self, law: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return a distribution of batch shape ``(..., batch)`` as that of the site."""
        if not self.layout.joint:
            return law
        return JointExamples(law, self.layout, weight=self.example_weights)

    @contextmanager
    def scored(self) -> Iterator[None]:
        """Context of the site: its scale, where 0 leaves the density out, without the handlers of
        examples."""
        scale: AbstractContextManager[Any] = nullcontext()
        if isinstance(self.scale, Tensor) or self.scale not in (0, 1):
            scale = poutine.scale(scale=self.scale)
        elif self.scale == 0:
            scale = poutine.mask(mask=False)
        with without_handlers(self.handlers), scale:
            yield


def placement(batch_shape: Sequence[int], weight: float | Tensor = 1.0) -> Placement:
    """Return the place of a site of examples under the active handlers.

    Args:
        batch_shape: ``(..., batch)``.
        weight: factor on its log density, a number or one for each example ``(batch,)``.
    """
    if not am_i_wrapped():
        return Placement(PLATED)
    place = layout(batch_shape)
    if not place.joint:
        return Placement(place, weight)
    handlers = handlers_of_examples()
    factors = [weight, *map(weight_of, handlers)]
    tensors = [factor for factor in factors if isinstance(factor, Tensor) and factor.dim() > 0]
    if not tensors:
        return Placement(place, weight, None, handlers)
    product: Any = math.prod(tensors, start=1.0)  # a mask is a factor of 0 or 1
    return Placement(place, 1.0 if tensors[0] is weight else weight, product, handlers)


class JointExamples(dist.TorchDistribution):
    """Distribution whose event holds the last batch dimensions of another, those of the examples.

    Its batch shape is that of plates: the other dimensions, right-aligned with the plates.

    Args:
        base_dist: of batch shape ``(..., examples)``.
        layout: the place of that batch in plates.
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
        self.base_dist = base_dist
        self.layout = layout
        self.weight = weight
        batch_shape = plate_shape(base_dist.batch_shape, layout)
        event_shape = base_dist.batch_shape[-layout.joint :] + base_dist.event_shape
        super().__init__(batch_shape, event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Support of the base distribution, with the dimensions of the examples as event
        dimensions."""
        return constraints.independent(self.base_dist.support, self.layout.joint)

    @property
    def mean(self) -> Tensor:
        """Mean ``(*batch, *event)``."""
        return self.joined(self.base_dist.mean)

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "JointExamples":
        """Return the same distribution with a larger batch shape."""
        base_dist = copy.copy(self.base_dist)  # some distributions of Pyro expand in place
        base_dist = base_dist.expand(self.base_shape(batch_shape))
        return JointExamples(base_dist, self.layout, weight=self.weight)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Sample ``(*sample_shape, *batch, *event)``."""
        sample_shape = torch.Size(sample_shape)
        values = self.base_dist.rsample(sample_shape)
        return values.reshape(sample_shape + self.batch_shape + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density in nats, summed over the examples, ``(*batch,)``."""
        return total(self.base_dist.log_prob(self.separated(value)), self.layout, self.weight)

    def joined(self, values: Tensor) -> Tensor:
        """Return values of the base distribution ``(..., examples, *base event)`` as
        ``(*batch, *event)``."""
        values = values.expand(self.base_dist.batch_shape + self.base_dist.event_shape)
        return values.reshape(self.batch_shape + self.event_shape)

    def separated(self, values: Tensor) -> Tensor:
        """Return values ``(*batch, *event)`` as those of the base distribution, the inverse of
        :meth:`joined`."""
        batch_shape = values.shape[: values.dim() - self.event_dim]
        return values.reshape(self.base_shape(batch_shape) + self.base_dist.event_shape)

    def base_shape(self, batch_shape: Sequence[int]) -> torch.Size:
        """Return the batch shape ``(..., examples)`` in a shape of plates, the inverse of
        :func:`plate_shape`."""
        joint, is_shifted = self.layout
        others = torch.Size(batch_shape)[: is_shifted - joint or None]
        return others + self.base_dist.batch_shape[-joint:]


def plate_shape(batch_shape: Sequence[int], layout: Layout) -> torch.Size:
    """Return the shape in plates of a batch ``(..., examples)``, whose joint dimensions have size 1
    there."""
    joint, is_shifted = layout
    others = torch.Size(batch_shape)[: len(batch_shape) - joint]
    return others + (1,) * (joint - is_shifted) if others.numel() > 1 else torch.Size()


def total(
    values: Tensor,
    layout: Layout,
    weight: Tensor | None = None,
) -> Tensor:
    """Return values of examples ``(..., examples)`` summed over the joint dimensions, in the shape
    of plates.

    Args:
        values: one for each example.
        layout: the place of their batch in plates.
        weight: factor of each example; where it is 0, its value does not count, whatever it is.
    """
    if not layout.joint:
        return values
    if weight is not None:
        values = (values * weight).where(weight != 0, 0.0)
    joint = tuple(range(-layout.joint, 0))
    return values.sum(joint).reshape(plate_shape(values.shape, layout))


@register_kl(JointExamples, JointExamples)
def _kl_joint_examples(q: JointExamples, p: JointExamples) -> Tensor:
    return total(kl_divergence(q.base_dist, p.base_dist), p.layout, p.weight)


def outside_examples() -> AbstractContextManager[None]:
    """Hide the plate of the examples, and masks and scales of single examples, from the sites
    inside.

    A global site has one value for all examples, and its density counts once. Other plates stay,
    such as Pyro's particles: the site has a value for each of their rows.
    """
    hidden = handlers_of_examples()
    return without_handlers(hidden) if hidden else nullcontext()


def left_of_examples(value: Tensor, event_dim: int) -> Tensor:
    """Return a value ``(*plates, *event)`` with its batch shape right-aligned with batches of
    examples.

    Where samples have dimension −1 of the plates, their dimension moves to the left of the
    examples, ``(S, 1, *event)``.
    """
    if value.dim() > event_dim and is_shifted():
        return value.unsqueeze(-1 - event_dim)
    return value


def aligned_with_plates(value: Tensor, event_dim: int) -> Tensor:
    """Return draws ``(S, *event)`` of ``Predictive(parallel=True)`` as ``(S, 1, *event)``.

    ``Predictive`` omits the dimension of the examples at sites with an event, so that draws would
    be taken for examples.
    """
    batch_shape = value.shape[: value.dim() - event_dim]
    for plate in HANDLERS:
        if isinstance(plate, IndepMessenger) and batch_shape == (plate.size,):
            right = -1 - (plate.dim or 0)  # dimensions between the draws and the event
            if right > 0:
                return value.unflatten(0, (plate.size, *(1,) * right))
    return value
