"""Messages of sample sites: their distribution, latent or observed, global or local, and the
handlers that see them."""

from collections.abc import Iterator
from typing import Any, cast

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import Message
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import Independent

from probattn.pyro_internals import HANDLERS, PLATES_OF_SAMPLES
from probattn.site_info import info_of


def law_of(msg: Message) -> dist.TorchDistribution:
    """Return the distribution of a sample site."""
    return cast(dist.TorchDistribution, msg["fn"])


def value_of(msg: Message) -> Tensor:
    """Return the value of a site that has been sampled."""
    return cast(Tensor, msg["value"])


def is_auxiliary(msg: Message) -> bool:
    """Return True for factors and for helper variables of guides, which Pyro marks."""
    infer: Any = msg["infer"]
    return bool(infer.get("is_auxiliary"))


def is_latent(msg: Message) -> bool:
    """Return True for messages and trace nodes of latent sample sites, other than labels to be
    predicted."""
    if msg["type"] != "sample" or msg["is_observed"]:
        return False
    return not info_of(msg).label and isinstance(msg["fn"], TorchDistributionMixin)


def is_local(msg: Message, trace: Trace | None = None) -> bool:
    """Return True for local sites: those whose record says so, and those inside the plate of the
    examples.

    That is a plate at dimension −1 with the size of the batch, if a trace has recorded that.

    Args:
        msg: a message, or a node of a finished trace.
        trace: that trace.
    """
    if info_of(msg).local:
        return True
    for frame in msg["cond_indep_stack"]:
        if frame.dim == -1 and not is_of_draws(frame):
            batch = batch_size() if trace is None else _batch_of(trace)
            return batch in (None, frame.size)
    return False


def is_global_latent(msg: Message, trace: Trace | None = None) -> bool:
    """Return True for global latent sample sites; arguments as for :func:`is_local`."""
    return is_latent(msg) and not is_local(msg, trace)


def is_of_draws(frame: CondIndepStackFrame) -> bool:
    """Return True for plate frames of samples: those of :class:`~probattn.draws`, and Pyro's
    own."""
    return frame.name in ("draws_-1", "draws_-2", *PLATES_OF_SAMPLES)


def seen_by(msg: Message, *, inside: Messenger) -> Iterator[Messenger]:
    """Yield the handlers around one of them that see a message, from the inside out: a block ends
    that.

    Args:
        msg: the message.
        inside: a handler on Pyro's stack.
    """
    for handler in reversed(HANDLERS[: HANDLERS.index(inside)]):
        if isinstance(handler, BlockMessenger) and handler.hide_fn(msg):
            return
        yield handler


def is_set_around(msg: Message, *, inside: Messenger) -> bool:
    """Return True if a handler around another gives the site a value: a replay or ``condition``.

    ``do`` is none of them: it gives a value to what follows, and the site itself stays a latent
    one.

    Args:
        msg, inside: as for :func:`seen_by`.
    """
    for handler in seen_by(msg, inside=inside):
        if not isinstance(handler, DoMessenger) and str(msg["name"]) in values_of(handler):
            return True
    return False


def values_of(handler: Messenger) -> Any:
    """Return the collection of the sites that a handler gives a value: a mapping or a trace, empty
    for other kinds."""
    if isinstance(handler, ReplayMessenger):
        return handler.trace or ()
    if isinstance(handler, ConditionMessenger | DoMessenger):
        return handler.data
    return ()


def batch_size(*, inside: Messenger | None = None) -> int | None:
    """Return the batch size of the program being run, the length of the first tensor that a trace
    has recorded.

    Args:
        inside: a handler; only traces inside it count.
    """
    first = 0 if inside is None else HANDLERS.index(inside) + 1
    for handler in HANDLERS[first:]:
        size = _batch_of(handler.trace) if isinstance(handler, TraceMessenger) else None
        if size is not None:
            return size
    return None


def _batch_of(trace: Trace) -> int | None:
    node = trace.nodes.get("_INPUT", {"args": (), "kwargs": {}})
    for value in (*node["args"], *node["kwargs"].values()):
        if isinstance(value, Tensor) and value.dim() > 0:
            return value.shape[0]
    return None


def unwrapped(fn: dist.TorchDistribution) -> dist.TorchDistribution:
    """Return the distribution inside ``to_event``."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn
