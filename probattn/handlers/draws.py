"""How many posterior draws there are, and where their dimension lies."""

from collections.abc import Iterator
from typing import Any, Literal

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.distributions.torch_transform import TransformModule
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK, Message
from torch import Tensor
from torch.distributions import Transform, TransformedDistribution, kl_divergence, register_kl

from probattn.handlers.messages import batch_size, is_amortised, is_global_latent, is_latent, is_local, unwrapped


class draws(Messenger):  # noqa: N801 - lower case as pyro's own handlers are
    """Draws latent sites many times at once, around model *and* guide.

    ``draws("example")`` draws each global site once per example: the expected ELBO and gradient of one shared draw with
    far less gradient noise. ``draws(S)`` makes S coherent draws of every site, which appear as a new dimension left of
    the batch, so that the layers below the first stochastic one run once. Both nest: ``draws("example")`` around
    ``draws(S)`` makes S particles per example. Log densities are scaled so that the KL counts once and all draws are
    averaged.

    >>> with draws("example"):
    ...     loss = elbo(model, guide)(x, y)  # doctest: +SKIP

    Args:
        number: the number of draws, or ``"example"``.

    Raises:
        ValueError: a number below 1; ``"example"`` outside an ELBO or a trace, which alone know the batch; a site in a
            plate at the dimension of the draws.
    """

    def __init__(self, number: int | Literal["example"]) -> None:
        super().__init__()
        if number != "example" and (isinstance(number, (str, bool)) or number < 1):
            raise ValueError(f'draws takes a positive number or "example", got {number!r}')
        self.number = number

    def _pyro_sample(self, msg: Message) -> None:
        fn = msg["fn"]
        if not isinstance(fn, dist.torch_distribution.TorchDistributionMixin):
            return
        dim, size = (-1, self._batch_size()) if self.number == "example" else (-2, self.number)
        if is_latent(msg) and (self.number != "example" or not is_local(msg)):
            if any(frame.dim == dim for frame in msg["cond_indep_stack"]):
                raise ValueError(
                    f"site {msg['name']} stands in a plate of dimension {dim}, where draws put theirs: leave that "
                    "dimension free, or predict with vectorize=False"
                )
            msg["fn"] = _expanded(fn, dim, size)
        elif self.number == "example" or len(fn.batch_shape) < 2 or fn.batch_shape[dim] != size:
            return
        frame = CondIndepStackFrame(f"draws_{dim}", dim=dim, size=size, counter=0)
        msg["cond_indep_stack"] = (frame, *msg["cond_indep_stack"])
        msg["scale"] = msg["scale"] / size

    def _batch_size(self) -> int:
        size = batch_size(inside=self)
        if size is None:
            raise ValueError(
                'draws("example") found no batch: run the program under an ELBO or poutine.trace(...).get_trace(x), '
                "with the batch as its first tensor, or use draws(number)"
            )
        return size


class one_draw(Messenger):  # noqa: N801
    """Marks a run as one of several draws that run one after another.

    Args:
        row: number of the draw, from 0.
        of: number of draws.
    """

    def __init__(self, row: int, *, of: int) -> None:
        super().__init__()
        self.row, self.of = row, of


class draws_in_batch(Messenger):  # noqa: N801
    """Says that draws lie in the batch of what runs inside, draw by draw: ``(S · batch, ...)``.

    Args:
        number: S.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __exit__(self, *error: Any) -> bool | None:
        for handler in _inside(stochastic_input):
            handler.drawn = True
        return super().__exit__(*error)


class stochastic_input(Messenger):  # noqa: N801
    """Says that draws differ from the input on, as by dropout: who folds them into the batch does so at the input.

    Its ``drawn`` says whether draws have appeared since, as they do behind :class:`draws_in_batch`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn = False


class at_mean(Messenger):
    """Puts every latent site at its mean instead of a draw: ``with at_mean(): predict(..., num_samples=1)``."""

    def _pyro_sample(self, msg: Message) -> None:
        if (is_global_latent(msg) or is_amortised(msg)) and not msg["done"]:
            fn = msg["fn"]
            msg["value"] = _center(fn).expand(fn.batch_shape + fn.event_shape)
            msg["done"] = True


def num_samples() -> int | None:
    """S of the innermost ``draws(S)``."""
    return next((each.number for each in _inside(draws) if each.number != "example"), None)


def present_draw() -> one_draw | None:
    """The draw that runs, where they run one after another (see :class:`one_draw`)."""
    return next(_inside(one_draw), None)


def num_folded() -> int | None:
    """S where draws lie in the batch (see :class:`draws_in_batch`)."""
    return next((each.number for each in _inside(draws_in_batch)), None)


def are_from_input() -> bool:
    """Whether draws differ from the input on (see :class:`stochastic_input`)."""
    return any(_inside(stochastic_input))


def _inside(kind: type[Messenger]) -> Iterator[Messenger]:
    """Pyro's handlers of a kind, from the innermost on."""
    return (handler for handler in reversed(_PYRO_STACK) if isinstance(handler, kind))


def _center(fn: dist.TorchDistribution) -> Tensor:
    """The mean; of a transformed distribution without one, where its base's mean goes."""
    try:
        return fn.mean
    except NotImplementedError:
        inner = unwrapped(fn)
        if isinstance(inner, ExpandedDistribution):
            return _center(inner.base_dist)
        if not isinstance(inner, TransformedDistribution):
            raise
        value = _center(inner.base_dist)
        for transform in inner.transforms:
            value = transform(value)
        return value


def _expanded(fn: dist.TorchDistribution, dim: int, size: int) -> dist.TorchDistribution:
    """The distribution with that many draws in a batch dimension; flows keep the caches of their transforms."""
    batch_shape = torch.broadcast_shapes(fn.batch_shape, (size,) + (1,) * (-1 - dim))
    # Lengths first: a batch of unknown size is not to be compared with the number of draws (torch.export).
    same = len(batch_shape) == len(fn.batch_shape) and batch_shape == fn.batch_shape
    if same:
        return fn
    inner = unwrapped(fn)
    if isinstance(inner, TransformedDistribution) and any(map(_has_cache, inner.transforms)):
        return fn.expand(batch_shape)
    return ExpandedDistribution(fn, batch_shape)


def _has_cache(transform: Transform) -> bool:
    return isinstance(transform, TransformModule) or type(transform).__name__.startswith("Conditioned")


@register_kl(ExpandedDistribution, ExpandedDistribution)
def _kl_expanded(q: ExpandedDistribution, p: ExpandedDistribution) -> Tensor:
    return kl_divergence(q.base_dist, p.base_dist).expand(q.batch_shape)
