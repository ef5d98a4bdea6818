"""A guide of K point masses: an ensemble in a few sites of one network."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide import AutoDelta
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.nn import PyroModule, pyro_method
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.attention.options import check_positive
from probattn.inference.prediction.latents import FIRST_DRAW
from probattn.messages import law_of


class Branches(PyroModule):
    """Guide of K point masses of equal weight, which start at draws from the priors.

    The weights of a network's last block with priors make it branch K times. Draws take the points
    in turn, whether they are calls or entries of a batch (``draws(S)``, ``draws("example")``,
    Pyro's plates of samples): S draws hold each point equally often if K divides S. Up to the
    constant log K the objective is the mean of those of K :class:`pyro.infer.autoguide.AutoDelta`.
    A prediction begins with the first point.

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
        """Sample all sites, each draw at the next point."""
        values = self.values(*args, **kwargs)
        first = FIRST_DRAW.get()
        turns = _Turns(values, self._turn if first is None else first)
        with turns:
            result = self.points[0](*args, **kwargs)
        if first is None:
            self._turn = (self._turn + turns.number) % len(self.points)
        return result

    @pyro_method
    def values(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return the points of each site ``(K, ...)``."""
        with poutine.block():
            points = [point(*args, **kwargs) for point in self.points]
        values = {}
        for name in points[0]:
            values[name] = torch.stack([point[name] for point in points])
        return values

    def get_extra_state(self) -> Tensor:
        """Return the turn, so that a resumed training goes on with the same point."""
        return torch.tensor(self._turn)

    def set_extra_state(self, state: Tensor) -> None:
        """Set the turn."""
        self._turn = int(state)


class _Turns(Messenger):
    """Handler that puts the points in turn at each site.

    Args:
        values: points of each site ``(K, ...)``.
        first: number of the first point.

    Attributes:
        number: number of draws of a site.
    """

    def __init__(self, values: dict[str, Tensor], first: int) -> None:
        super().__init__()
        self.values = values
        self.first = first
        self.number = 1

    def _pyro_sample(self, msg: Message) -> None:
        name = str(msg["name"])
        if name in self.values:
            msg["fn"] = PointsInTurn(self.values[name], law_of(msg).event_dim, first=self.first)

    def _pyro_post_sample(self, msg: Message) -> None:
        name = str(msg["name"])
        if name in self.values:
            drawn = law_of(msg).shape().numel()
            self.number = max(self.number, drawn // self.values[name][0].numel())


class PointsInTurn(dist.Delta):
    """Point masses that take turns: entry i of a batch is at point (first + i) mod K.

    Args:
        points: K points ``(K, *batch, *event)``.
        event_dim: number of event dimensions.
        first: number of the first entry's point.
        batch_shape: the batch shape, whose last dimensions are those of the points; theirs by
            default.
    """

    takes_turns = True

    def __init__(
        self,
        points: Tensor,
        event_dim: int,
        *,
        first: int = 0,
        batch_shape: torch.Size | None = None,
    ) -> None:
        self.points = points
        self.first = first
        own = points.shape[1 : points.dim() - event_dim]
        event = points.shape[points.dim() - event_dim :]
        batch_shape = own if batch_shape is None else batch_shape
        turns = batch_shape[: len(batch_shape) - len(own)]
        index = first + torch.arange(turns.numel(), device=points.device)
        values = points[index % len(points)].reshape(turns + own + event)
        super().__init__(values.expand(batch_shape + event), event_dim=event_dim)

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> "PointsInTurn":
        """Return the distribution with a larger batch shape, whose entries take turns."""
        return PointsInTurn(
            self.points, self.event_dim, first=self.first, batch_shape=torch.Size(batch_shape)
        )
