"""Messages of sample sites: their distribution and options, latent or observed, global or local."""

from typing import Any, cast

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import InferDict, Message
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import Independent

from probattn.pyro_internals import HANDLERS


def law_of(msg: Message) -> dist.TorchDistribution:
    """Return the distribution of a sample site."""
    return cast(dist.TorchDistribution, msg["fn"])


def value_of(msg: Message) -> Tensor:
    """Return the value of a site that has been sampled."""
    return cast(Tensor, msg["value"])


def infer_of(msg: Message) -> dict[str, Any]:
    """Return the options of a site (see :func:`infer_dict`)."""
    return cast(dict[str, Any], msg["infer"])


def infer_dict(**options: Any) -> InferDict:
    """Return options of a site as the type that Pyro's statements take, which lists Pyro's own alone."""
    return cast(InferDict, options)


def is_latent(msg: Message) -> bool:
    """Return True for messages and trace nodes of latent sample sites, other than labels to be predicted."""
    return (
        msg["type"] == "sample"
        and not msg["is_observed"]
        and not infer_of(msg).get("label")
        and isinstance(msg["fn"], TorchDistributionMixin)
    )


def is_local(msg: Message, trace: Trace | None = None) -> bool:
    """Return True for local sites: marked ``infer={"local": True}``, or inside the plate of the examples.

    That is a plate at dimension −1 with the size of the batch, if a trace has recorded that.

    Args:
        msg: a message, or a node of a finished trace.
        trace: that trace.
    """
    if infer_of(msg).get("local"):
        return True
    for frame in msg["cond_indep_stack"]:
        if frame.dim == -1 and not is_of_draws(frame):
            return (batch_size() if trace is None else _batch_of(trace)) in (None, frame.size)
    return False


def is_global_latent(msg: Message, trace: Trace | None = None) -> bool:
    """Return True for global latent sample sites; arguments as for :func:`is_local`."""
    return is_latent(msg) and not is_local(msg, trace)


def is_amortised(msg: Message) -> bool:
    """Return True for local sites that :func:`~probattn.local_posteriors` has drawn from the posterior they carry."""
    return msg["type"] == "sample" and bool(infer_of(msg).get("drawn"))


def is_of_draws(frame: CondIndepStackFrame) -> bool:
    """Return True for plate frames that :class:`~probattn.draws` adds."""
    return frame.name in ("draws_-1", "draws_-2")


def batch_size(*, inside: Messenger | None = None) -> int | None:
    """Return the batch size of the program being run, the length of the first tensor that a trace has recorded.

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
