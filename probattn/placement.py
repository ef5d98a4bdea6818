"""Where a site of examples stands: in their plate, or outside any, where all examples are one event."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pyro.distributions as dist
import pyro.poutine as poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor

from probattn.examples import Layout, handlers_of_examples, layout, weight_of
from probattn.joint_examples import JointExamples, total
from probattn.pyro_internals import without_handlers


class Placement(NamedTuple):
    """Place of a site in the active plates.

    Args:
        layout: the dimensions of its batch that belong to its event, none in a plate of the examples.
        scale: factor on its log density.
        each: the same for each example, ``(batch,)``, where they are one event.
        hidden: active handlers whose factors are in ``each``.
    """

    layout: Layout
    scale: float | Tensor
    each: Tensor | None
    hidden: list[Messenger]

    def joint(self, law: dist.TorchDistribution) -> dist.TorchDistribution:
        """Return a distribution of batch shape ``(..., batch)`` as that of the site."""
        return JointExamples(law, self.layout, weight=self.each) if self.layout.joint else law

    def joined(self, law: dist.TorchDistribution, value: Tensor) -> Tensor:
        """Return a value ``(..., batch, *event)`` as that of the site with the law of :meth:`joint`."""
        return law.joined(value) if isinstance(law, JointExamples) else value

    def separated(self, law: dist.TorchDistribution, value: Tensor) -> Tensor:
        """Return the site's value as ``(..., batch, *event)``, the inverse of :meth:`joined`."""
        return law.separated(value) if isinstance(law, JointExamples) else value

    def total(self, log_factor: Tensor) -> Tensor:
        """Return the log factor of the site, from one of each example ``(..., batch)``."""
        return total(log_factor, self.layout, self.each) if self.layout.joint else log_factor

    @contextmanager
    def scored(self) -> Iterator[None]:
        """Context of the site: its scale, where 0 leaves the density out, without the hidden handlers."""
        with without_handlers(self.hidden):
            if isinstance(self.scale, Tensor) or self.scale not in (0, 1):
                with poutine.scale(scale=self.scale):
                    yield
            elif self.scale == 0:
                with poutine.mask(mask=False):
                    yield
            else:
                yield


def placement(batch_shape: Sequence[int], weight: float | Tensor = 1.0) -> Placement:
    """Return the place of a site of examples under the active handlers.

    Args:
        batch_shape: ``(..., batch)``.
        weight: factor on its log density, a number or one for each example ``(batch,)``.
    """
    if not am_i_wrapped():
        return Placement(Layout((), is_shifted=False), 1.0, None, [])
    place = layout(batch_shape)
    if not place.joint:
        return Placement(place, weight, None, [])
    hidden = handlers_of_examples()
    factors = [weight_of(handler) for handler in hidden]
    is_each = isinstance(weight, Tensor) and weight.dim() > 0
    each = weight if is_each else None
    for factor in factors:
        if isinstance(factor, Tensor):
            each = factor * 1.0 if each is None else each * factor
    return Placement(place, 1.0 if is_each else weight, each, hidden)
