"""Number of posterior draws, and the dimension that holds them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.distributions.torch_transform import TransformModule
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor
from torch.distributions import Transform, TransformedDistribution, kl_divergence, register_kl

from probattn.handlers.messages import batch_size, is_amortised, is_global_latent, is_latent, is_local, unwrapped
from probattn.handlers.stored import stored_sites
from probattn.handlers.threads import Handler
from probattn.pyro_compat import HANDLER_STACK
from probattn.thread_values import ThreadValue

_NUM_FOLDED: ThreadValue[int | None] = ThreadValue(None)
_STOCHASTIC_INPUT = ThreadValue(False)


class draws(Handler):  # noqa: N801 - lower case as pyro's own handlers are
    """Vectorised draws of latent sites, around model *and* guide.

    ``draws("example")`` samples each global site once per example: the expected ELBO and gradient are those of one
    shared draw, with far less gradient noise. ``draws(S)`` samples every site S times, in a new dimension left of the
    batch, so that the layers below the first stochastic one run once. Both nest: ``draws("example")`` around
    ``draws(S)`` gives S particles per example. Log densities are scaled so that the KL counts once and all draws are
    averaged.

    >>> with draws("example"):
    ...     loss = elbo(model, guide)(x, y)  # doctest: +SKIP

    Args:
        number: the number of draws, or ``"example"``.

    Raises:
        ValueError: a number below 1; ``"example"`` outside an ELBO or a trace, which know the batch; a site in a
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
                    f"site {msg['name']} is in a plate of dimension {dim}, which draws use: leave it free, or "
                    "predict with vectorize=False"
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


class one_draw(Handler):  # noqa: N801
    """Mark a run as one of several draws that run sequentially.

    Args:
        row: index of the draw, from 0.
        of: number of draws.
    """

    def __init__(self, row: int, *, of: int) -> None:
        super().__init__()
        self.row, self.of = row, of


@contextmanager
def draws_in_batch(number: int) -> Iterator[None]:
    """Mark that draws are folded into the batch of what runs inside, draw by draw: ``(S · batch, ...)``.

    Args:
        number: S.
    """
    try:
        with _NUM_FOLDED.replaced(number):
            yield
    finally:
        stored = stored_sites()
        if stored is not None:
            stored.drawn = True
        for handler in _inside(stochastic_input):
            handler.drawn = True


class stochastic_input(Handler):  # noqa: N801
    """Mark the input itself as stochastic (MC dropout), so converted networks fold samples into the batch at the input.

    Attributes:
        drawn: True once the draws have appeared, as after :class:`draws_in_batch`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn = False

    def __enter__(self) -> Self:
        entered = super().__enter__()
        self._inside = _STOCHASTIC_INPUT.replaced(True)
        self._inside.__enter__()
        return entered

    def __exit__(self, *error: Any) -> bool | None:
        self._inside.__exit__(*error)
        return super().__exit__(*error)


class at_mean(Handler):
    """Set every latent site to its mean instead of sampling: ``with at_mean(): predict(..., num_samples=1)``."""

    def _pyro_sample(self, msg: Message) -> None:
        if (is_global_latent(msg) or is_amortised(msg)) and not msg["done"]:
            fn = msg["fn"]
            msg["value"] = _center(fn).expand(fn.batch_shape + fn.event_shape)
            msg["done"] = True


def num_samples() -> int | None:
    """Return S of the innermost ``draws(S)``, or of stored sites; None without any."""
    stored = stored_sites()
    if stored is not None:
        return stored.num_samples
    return next((each.number for each in _inside(draws) if each.number != "example"), None)


def current_draw() -> one_draw | None:
    """Return the current draw if draws run sequentially (see :class:`one_draw`), else None."""
    return next(_inside(one_draw), None)


def num_folded() -> int | None:
    """Return S if draws are folded into the batch (see :class:`draws_in_batch`), else None."""
    return _NUM_FOLDED.value


def has_stochastic_input() -> bool:
    """Return True inside :class:`stochastic_input`, also under stored sites."""
    return _STOCHASTIC_INPUT.value


def _inside(kind: type[Messenger]) -> Iterator[Messenger]:
    """Yield the active handlers of a class, innermost first; none under stored sites."""
    active = HANDLER_STACK if stored_sites() is None else ()
    return (handler for handler in reversed(active) if isinstance(handler, kind))


def draw_local(posterior: dist.TorchDistribution, *, number: int | None) -> Tensor:
    """Return S draws of a local site as under ``draws(S)``, or its mean as under :class:`at_mean` for None."""
    if number is None:
        return _center(posterior).expand(posterior.batch_shape + posterior.event_shape)
    return _expanded(posterior, -2, number)()


def _center(fn: dist.TorchDistribution) -> Tensor:
    """Return the mean; for a transformed distribution without one, the image of its base's mean."""
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
    """Return the distribution expanded in a batch dimension; flows keep the caches of their transforms."""
    batch_shape = torch.broadcast_shapes(fn.batch_shape, (size,) + (1,) * (-1 - dim))
    # Compare lengths first: torch.export must not compare a symbolic batch size with the number of draws.
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
