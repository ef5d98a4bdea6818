"""Messages of sample sites: their distribution, latent or observed, global or local, the handlers
that see them, and checks of the values and the guide that these give a site."""

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
from probattn.site_info import info_of, mark


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


def check_is_meant(site: str) -> None:
    """Check that no handler gives a value to the site of a layer without a name by the path that it
    would have.

    Raises:
        ValueError: such a value, which would have no effect.
    """
    for handler in HANDLERS:
        given = values_of(handler)
        others = [name for name in given if name.endswith(f".{site}")]
        if others and site not in given:
            raise ValueError(
                f"{others[0]} is given a value, but the layer has no name, and its site is called "
                f"{site}: call name_layers(model) once, which names layers by their paths"
            )


class CheckedReplay(Messenger):
    """Check how a replayed guide covers a site that carries its posterior; used around that site.

    Args:
        weight: factor of the site's density in its layer, which the guide's density needs as well.

    Raises:
        ValueError: a site missing in the guide, which would be sampled from its prior; a weighted
            site that an AutoGuide samples, whose density belongs to another site.
    """

    def __init__(self, weight: float | Tensor) -> None:
        super().__init__()
        self.weight = weight

    def _pyro_post_sample(self, msg: Message) -> None:
        name = str(msg["name"])
        if msg["is_observed"] or info_of(msg).from_prior:
            return
        handlers = seen_by(msg, inside=self)
        traces = [values_of(each) for each in handlers if isinstance(each, ReplayMessenger)]
        nodes = [trace.nodes[name] for trace in traces if name in trace]
        if traces and not nodes:
            raise ValueError(
                f"the guide draws no site {name}, and its prior is not its posterior, which the "
                "layer has: wrap the model, local_posteriors(model), or use "
                "guides.for_model(model)"
            )
        if isinstance(self.weight, int | float) and self.weight == 1:
            return
        for node in nodes:
            if isinstance(getattr(node["fn"], "base_dist", node["fn"]), dist.Delta):
                raise ValueError(
                    f"the density of {name} has a weight in its layer, which an AutoGuide cannot "
                    "follow: build it on local_posteriors(model)"
                )
            # Else the layer itself drew it in the guide, with its weight.
            if info_of(node).weight is None:
                node["scale"] = node["scale"] * self.weight
                mark(node, weight=self.weight)
