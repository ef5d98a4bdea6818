"""A guide of K point masses: an ensemble in a few sites of one network."""

from collections.abc import Callable
from typing import Any, cast

import pyro.poutine as poutine
from pyro.infer.autoguide import AutoDelta
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.attention.options import check_positive


class Branches(PyroModule):
    """Guide of K point masses of equal weight, which start at draws from the priors.

    The weights of a network's last block with priors make it branch K times. Each call takes the next point, so that S
    samples hold each point equally often if K divides S, and a training step moves one of them. Up to the constant
    log K the objective is the mean of those of K :class:`pyro.infer.autoguide.AutoDelta`.

    >>> guide = guides.for_model(model, rest=Branches)  # doctest: +SKIP

    Args:
        model: a model, or its part that other guides do not cover.
        branches: K.
    """

    def __init__(self, model: Callable[..., Any], *, branches: int = 5) -> None:
        super().__init__()
        check_positive(branches=branches)
        points = [AutoDelta(model, init_loc_fn=init_to_sample) for _ in range(branches)]
        # A PyroModule, whose parameters have a name for each point.
        self.points = cast(type[nn.ModuleList], PyroModule[nn.ModuleList])(points)
        self._turn = 0

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample all sites at the next point."""
        if self.points[-1].prototype_trace is None:  # all have their parameters after the first call
            with poutine.block():
                for point in self.points:
                    point(*args, **kwargs)
        point = self.points[self._turn]
        self._turn = (self._turn + 1) % len(self.points)
        return point(*args, **kwargs)
