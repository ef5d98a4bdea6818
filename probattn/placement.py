"""Where a site of examples stands: in their plate, or outside any, where all examples are one
event."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import pyro.distributions as dist
import pyro.poutine as poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor

from probattn.examples import PLATED, Layout, handlers_of_examples, layout, weight_of
from probattn.joint_examples import JointExamples
from probattn.pyro_internals import without_handlers


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
        return (
            JointExamples(law, self.layout, weight=self.example_weights)
            if self.layout.joint
            else law
        )

    def joined(self, law: dist.TorchDistribution, value: Tensor) -> Tensor:
        """Return a value ``(..., batch, *event)`` as that of the site with the law of
        :meth:`joint`."""
        return law.joined(value) if isinstance(law, JointExamples) else value

    def separated(self, law: dist.TorchDistribution, value: Tensor) -> Tensor:
        """Return the site's value as ``(..., batch, *event)``, the inverse of :meth:`joined`."""
        return law.separated(value) if isinstance(law, JointExamples) else value

    @contextmanager
    def scored(self) -> Iterator[None]:
        """Context of the site: its scale, where 0 leaves the density out, without the handlers of
        examples."""
        scale: Messenger | None = None
        if isinstance(self.scale, Tensor) or self.scale not in (0, 1):
            scale = poutine.scale(scale=self.scale)
        elif self.scale == 0:
            scale = poutine.mask(mask=False)
        with without_handlers(self.handlers), scale or nullcontext():
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
    product: Any = (
        math.prod(tensors, start=1.0) if tensors else None
    )  # a mask is a factor of 0 or 1
    scale = 1.0 if tensors and tensors[0] is weight else weight
    return Placement(place, scale, product, handlers)
