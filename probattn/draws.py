"""Number of posterior draws, and the dimension that holds them."""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, Self

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import ExpandedDistribution, TorchDistributionMixin
from pyro.distributions.torch_transform import TransformModule
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.runtime import Message
from torch import Tensor
from torch.distributions import kl_divergence, register_kl

from probattn.functional.context import bound
from probattn.messages import batch_size, is_global_latent, is_latent, is_local, law_of, unwrapped
from probattn.pyro_internals import HANDLERS
from probattn.site_info import info_of
from probattn.threads import LockedMessenger

_SAMPLES: ContextVar[int | None] = ContextVar("samples", default=None)
_FOLDED: ContextVar[int | None] = ContextVar("folded", default=None)


class draws(LockedMessenger):  # noqa: N801 - lower case as pyro's own handlers are
    """Vectorised draws of latent sites, around model *and* guide.

    ``draws("example")`` samples each global site once per example: the expected ELBO and gradient
    are those of one shared draw, with far less gradient noise. ``draws(S)`` samples every site S
    times, in a new dimension left of the batch, so that the layers below the first stochastic one
    run once. Both nest: ``draws("example")`` around ``draws(S)`` gives S particles per example. Log
    densities are scaled so that the KL counts once and all draws are averaged.

    >>> with draws("example"):
    ...     loss = TraceMeanField_ELBO().differentiable_loss(model, guide, x, y)  # doctest: +SKIP

    Args:
        number: the number of draws, or ``"example"``.

    Raises:
        ValueError: a number below 1; ``"example"`` outside an ELBO or a trace, which know the
            batch; a site in a plate at the dimension of the draws.
    """

    def __init__(self, number: int | Literal["example"]) -> None:
        super().__init__()
        if number != "example" and (isinstance(number, str | bool) or number < 1):
            raise ValueError(f'draws takes a positive number or "example", got {number!r}')
        self.number = number

    def __enter__(self) -> Self:
        super().__enter__()  # first, since it waits for other threads
        self._outer = _SAMPLES.get()
        if self.number != "example":
            _SAMPLES.set(self.number)
        return self

    def __exit__(self, *error: Any) -> None:
        _SAMPLES.set(self._outer)
        super().__exit__(*error)

    def _pyro_sample(self, msg: Message) -> None:
        fn = msg["fn"]
        if not isinstance(fn, TorchDistributionMixin):
            return
        if self.number == "example":
            if not is_global_latent(msg):
                return
            dim = -1
            size = batch_size(inside=self)
        else:
            dim = -2
            size = self.number
        if size is None:
            raise ValueError(
                'draws("example") found no batch: run the program under an ELBO or '
                "poutine.trace(...).get_trace(x), with the batch as its first tensor, or use "
                "draws(number)"
            )
        if is_latent(msg):
            if any(plate.dim == dim for plate in msg["cond_indep_stack"]):
                raise ValueError(
                    f"site {msg['name']} is in a plate of dimension {dim}, which draws use: leave "
                    "it free, or predict with vectorize=False"
                )
            msg["fn"] = expanded(fn, dim, size)
        elif len(fn.batch_shape) < 2 or fn.batch_shape[dim] != size:
            return
        frame = CondIndepStackFrame(f"draws_{dim}", dim=dim, size=size, counter=0)
        msg["cond_indep_stack"] = (frame, *msg["cond_indep_stack"])
        msg["scale"] = msg["scale"] / size


class at_mean(LockedMessenger):  # noqa: N801
    """Set every latent site to its mean, or that of the posterior that it carries, instead of
    sampling.

    >>> with at_mean():
    ...     predict(model, guide, x, num_samples=1)  # doctest: +SKIP
    """

    def _pyro_sample(self, msg: Message) -> None:
        if is_latent(msg) and msg["value"] is None:
            prior = law_of(msg)
            posterior = info_of(msg).posterior
            if posterior is not None or not is_local(msg):
                msg["value"] = mean_of(prior if posterior is None else posterior, prior.batch_shape)
                msg["done"] = True


def draws_in_batch(number: int) -> AbstractContextManager[Any]:
    """Mark that draws are folded into the batch of what runs inside, draw by draw:
    ``(S · batch, ...)``.

    Args:
        number: S.
    """
    return bound(_FOLDED, number)


def num_folded() -> int | None:
    """Return S if draws are folded into the batch (see :func:`draws_in_batch`), else None."""
    return _FOLDED.get()


def sample_dimension(number: int | None) -> AbstractContextManager[Any]:
    """Declare S draws in the dimension left of the batch, for networks that run without
    handlers."""
    return bound(_SAMPLES, number)


def num_samples() -> int | None:
    """Return S of the innermost ``draws(S)``, or of a network with stored samples; None without
    any."""
    return _SAMPLES.get()


def draw(posterior: TorchDistribution, batch_shape: torch.Size) -> Tensor:
    """Return a draw of a local site's posterior in a batch shape, or its mean under
    :class:`at_mean`."""
    if any(isinstance(handler, at_mean) for handler in HANDLERS):
        return mean_of(posterior, batch_shape)
    return in_batch_shape(posterior, batch_shape).rsample()


def in_batch_shape(law: TorchDistribution, batch_shape: torch.Size) -> TorchDistribution:
    """Return a distribution in a batch shape."""
    return law if law.batch_shape == batch_shape else law.expand(batch_shape)


def mean_of(fn: TorchDistribution, batch_shape: torch.Size) -> Tensor:
    """Return the mean in a batch shape; for a transformed distribution without one, the image of
    its base's mean."""
    try:
        mean = fn.mean
    except NotImplementedError:
        inner = unwrapped(fn)
        if not hasattr(inner, "base_dist"):
            raise
        mean = mean_of(inner.base_dist, inner.base_dist.batch_shape)
        for transform in getattr(inner, "transforms", ()):
            mean = transform(mean)
    return mean.expand(batch_shape + fn.event_shape)


def expanded(fn: TorchDistribution, dim: int, size: int) -> TorchDistribution:
    """Return the distribution expanded in a batch dimension; flows keep the caches of their
    transforms."""
    batch_shape = torch.broadcast_shapes(fn.batch_shape, (size,) + (1,) * (-1 - dim))
    # Compare lengths first: torch.export must not compare a symbolic batch size with the number of
    # draws.
    if len(batch_shape) == len(fn.batch_shape) and batch_shape == fn.batch_shape:
        return fn
    inner = unwrapped(fn)
    transforms = getattr(inner, "transforms", ())
    base = unwrapped(inner.base_dist) if transforms else inner
    has_cache = any(
        isinstance(transform, TransformModule) or "Conditioned" in repr(type(transform))
        for transform in transforms
    )
    # Pyro's mixtures sample a wrong law for a sample shape, but the right one for a batch shape.
    is_mixture = "Mixture" in type(base).__name__
    # What an entry is may depend on the whole batch.
    takes_turns = getattr(inner, "takes_turns", False)
    if has_cache or is_mixture or takes_turns:
        return fn.expand(batch_shape)
    return Drawn(fn, batch_shape)


class Drawn(ExpandedDistribution):
    """A distribution in a larger batch shape, whose KL is that of the distribution inside: many
    draws cost one KL."""


@register_kl(Drawn, dist.Distribution)
def _kl_drawn(q: Drawn, p: torch.distributions.Distribution) -> Tensor:
    inner = p.base_dist if isinstance(p, Drawn) else p
    return kl_divergence(q.base_dist, inner).expand(q.batch_shape)
