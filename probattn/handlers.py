"""Effect handlers: how many posterior draws there are, and which sites belong to one example.

The batch shape of a site is right-aligned with the batch of examples: ``()`` is one shared draw, ``(batch,)`` a draw
per example, ``(S, 1)`` S draws for prediction. Layers only broadcast. A plate at dimension −1 is that of the examples.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.distributions.torch_transform import TransformModule
from pyro.poutine.indep_messenger import CondIndepStackFrame, IndepMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK, Message
from pyro.poutine.subsample_messenger import _Subsample
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import Independent, Transform, TransformedDistribution, kl_divergence, register_kl


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


class local_sites(Messenger):  # noqa: N801
    """Marks the sites with ``infer={"local": True}`` as one per example of a batch that stands for the data set.

    They get the data plate (dimension −1) and the scale ``num_data / batch``; global sites pass untouched.

    Args:
        batch: number of examples in the batch.
        num_data: number of examples in the data set.
    """

    def __init__(self, *, batch: int, num_data: int) -> None:
        super().__init__()
        self.frame = CondIndepStackFrame("data", dim=-1, size=batch, counter=0, full_size=num_data)
        self.factor = num_data / batch

    def _pyro_sample(self, msg: Message) -> None:
        if msg["infer"].get("local"):
            msg["cond_indep_stack"] = (self.frame, *msg["cond_indep_stack"])
            msg["scale"] = msg["scale"] * self.factor


class kl_weight(Messenger):  # noqa: N801
    """Scales the latent sites, around model *and* guide: weights of 1 are the ELBO (20), 0 drops the KL.

    Args:
        weight: factor on log p(u) and log q(u) of global sites.
        local: the same for local sites, but for those of a regulariser.
    """

    def __init__(self, weight: float, *, local: float = 1.0) -> None:
        super().__init__()
        self.weight, self.local = weight, local

    def _pyro_sample(self, msg: Message) -> None:
        if is_global_latent(msg):
            msg["scale"] = msg["scale"] * self.weight
        elif is_latent(msg) and not msg["infer"].get("regulariser"):
            msg["scale"] = msg["scale"] * self.local


class local_posteriors(Messenger):  # noqa: N801
    """Draws the local latent sites that carry their posterior from it, in the model's own pass.

    Around a model that is replayed against a guide; sites that the guide has drawn itself are left to it.

    Args:
        guide_trace: where the sites are recorded as the guide's, or None.
    """

    def __init__(self, guide_trace: Trace | None = None) -> None:
        super().__init__()
        self.guide_trace = guide_trace

    def _pyro_sample(self, msg: Message) -> None:
        if is_amortised(msg) and msg["value"] is None:
            posterior, prior = msg["infer"]["posterior"], msg["fn"]
            msg["infer"] = msg["infer"] | {"prior": prior}
            # A plate inside may have expanded the prior already.
            same = posterior.batch_shape == prior.batch_shape
            msg["fn"] = posterior if same else posterior.expand(prior.batch_shape)

    def _pyro_post_sample(self, msg: Message) -> None:
        prior = msg["infer"].pop("prior", None)
        if prior is None:
            return
        if self.guide_trace is not None and not msg["is_observed"]:
            node = msg.copy()
            node["infer"] = {key: value for key, value in msg["infer"].items() if key != "posterior"}
            self.guide_trace.add_node(msg["name"], **node)
        if isinstance(msg["fn"], ExpandedDistribution):
            prior = ExpandedDistribution(prior, msg["fn"].batch_shape)
        msg["fn"] = prior


class labels_at(Messenger):  # noqa: N801
    """Marks the site of the labels inside, which :class:`draws` leaves with the draws that it depends on.

    Args:
        name: the site.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _pyro_sample(self, msg: Message) -> None:
        if msg["name"] == self.name:
            msg["infer"] = msg["infer"] | {"label": True}


class one_draw(Messenger):  # noqa: N801
    """Marks a run as one of several draws that run one after another.

    Args:
        row: number of the draw, from 0.
        of: number of draws.
    """

    def __init__(self, row: int, *, of: int) -> None:
        super().__init__()
        self.row, self.of = row, of


class local_priors(Messenger):  # noqa: N801
    """Lets local latent sites be drawn from their priors inside, as the global ones of a replay were."""


class global_sites_only(Messenger):  # noqa: N801
    """Lets guides of this library leave local sites to the model's own pass, which :class:`local_posteriors` draws."""


class guided_local_sites(Messenger):  # noqa: N801
    """Turns a run of the model into a guide of its local sites: each is drawn from the posterior that it carries.

    All other sites are hidden from handlers outside. For guides under Pyro's own ELBOs, which run the model anew.

    Attributes:
        values: what was drawn, by site.
        has_met: whether there is such a site, conditioned or not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Tensor] = {}
        self.has_met = False

    def _pyro_sample(self, msg: Message) -> None:
        if isinstance(msg["fn"], _Subsample):
            return  # the model must see the same examples
        self.has_met |= "posterior" in msg["infer"]
        if not is_amortised(msg):
            msg["stop"] = True
            return
        posterior, prior = msg["infer"]["posterior"], msg["fn"]
        msg["infer"] = {key: value for key, value in msg["infer"].items() if key != "posterior"}
        msg["fn"] = posterior if posterior.batch_shape == prior.batch_shape else posterior.expand(prior.batch_shape)

    def _pyro_post_sample(self, msg: Message) -> None:
        if msg["infer"].get("local") and not msg["is_observed"]:
            self.values[msg["name"]] = msg["value"]


class folded(Messenger):  # noqa: N801
    """Says that draws lie in the batch of what runs inside, draw by draw: ``(S · batch, ...)``.

    Args:
        number: S.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __exit__(self, *error: Any) -> bool | None:
        for handler in _inside(draws_from_input):
            handler.drawn = True
        return super().__exit__(*error)


class draws_from_input(Messenger):  # noqa: N801
    """Says that draws differ from the input on, as by dropout: who folds them into the batch does so at the input.

    Its ``drawn`` says whether draws have appeared since, as they do behind :class:`folded`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn = False


class alpha(Messenger):  # noqa: N801
    """Scales the regulariser of correlated GPs (CGP paper, eq. 28), wherever layers have one.

    Args:
        weight: factor on the layers' own α; 0 switches the regulariser off.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def _pyro_sample(self, msg: Message) -> None:
        if msg["infer"].get("regulariser"):
            msg["scale"] = msg["scale"] * self.weight


class at_mean(Messenger):
    """Puts every latent site at its mean instead of a draw: ``with at_mean(): predict(..., num_draws=1)``."""

    def _pyro_sample(self, msg: Message) -> None:
        if (is_global_latent(msg) or is_amortised(msg)) and not msg["done"]:
            fn = msg["fn"]
            msg["value"] = _center(fn).expand(fn.batch_shape + fn.event_shape)
            msg["done"] = True


def num_draws() -> int | None:
    """S of the innermost ``draws(S)``."""
    return next((each.number for each in _inside(draws) if each.number != "example"), None)


def present_draw() -> one_draw | None:
    """The draw that runs, where they run one after another (see :class:`one_draw`)."""
    return next(_inside(one_draw), None)


def num_folded() -> int | None:
    """S where draws lie in the batch (see :class:`folded`)."""
    return next((each.number for each in _inside(folded)), None)


def are_from_input() -> bool:
    """Whether draws differ from the input on (see :class:`draws_from_input`)."""
    return any(_inside(draws_from_input))


def is_latent(msg: Message) -> bool:
    """Return True for messages and trace nodes of latent sample sites; labels to be predicted are none."""
    return (
        msg["type"] == "sample"
        and not msg["is_observed"]
        and not msg["infer"].get("label")
        and isinstance(msg["fn"], dist.torch_distribution.TorchDistributionMixin)
    )


def is_local(msg: Message, trace: Trace | None = None) -> bool:
    """Return True for sites of single examples: marked ``infer={"local": True}``, or in the plate of the examples.

    That is a plate at dimension −1 whose size is that of the batch, where a trace tells it.

    Args:
        msg: a message, or a node of a finished trace.
        trace: that trace.
    """
    if msg["infer"].get("local"):
        return True
    frames = [frame for frame in msg["cond_indep_stack"] if frame.dim == -1 and not is_of_draws(frame)]
    size = batch_size() if trace is None else _batch_of(trace)
    return bool(frames) and size in (None, frames[0].size)


def batch_size(*, inside: Messenger | None = None) -> int | None:
    """Return the batch size of the program being run, the length of the first tensor that a trace has recorded.

    Args:
        inside: a handler; only traces inside it count.
    """
    first = 0 if inside is None else _PYRO_STACK.index(inside) + 1
    for handler in _PYRO_STACK[first:]:
        size = _batch_of(handler.trace) if isinstance(handler, TraceMessenger) else None
        if size is not None:
            return size
    return None


def _batch_of(trace: Trace) -> int | None:
    inputs = trace.nodes.get("_INPUT", {"args": (), "kwargs": {}})
    for value in (*inputs["args"], *inputs["kwargs"].values()):
        if isinstance(value, Tensor) and value.dim() > 0:
            return value.shape[0]
    return None


def is_of_draws(frame: CondIndepStackFrame) -> bool:
    """Return True for plate frames that :class:`draws` adds."""
    return frame.name in ("draws_-1", "draws_-2")


def is_global_latent(msg: Message, trace: Trace | None = None) -> bool:
    """Return True for latent sample sites that the whole data set shares; arguments as for :func:`is_local`."""
    return is_latent(msg) and not is_local(msg, trace)


def is_amortised(msg: Message) -> bool:
    """Return True for latent sites of single examples that carry their posterior."""
    return msg["type"] == "sample" and not msg["is_observed"] and "posterior" in msg["infer"]


def has_data_plate() -> bool:
    """Return True inside a plate at dimension −1, the user's or that of :class:`local_sites`."""
    return any(_is_data_plate(handler) or isinstance(handler, local_sites) for handler in _PYRO_STACK)


def data_plate(name: str, size: int) -> Messenger:
    """A plate of the examples, at dimension −1 and without subsampling."""
    return IndepMessenger(name, size, dim=-1)


@contextmanager
def outside_data_plate() -> Iterator[None]:
    """Sample statements inside do not see a plate at dimension −1: one value, and one KL, for all examples."""
    installed = list(_PYRO_STACK)
    _PYRO_STACK[:] = [handler for handler in installed if not _is_data_plate(handler)]
    try:
        yield
    finally:
        _PYRO_STACK[:] = installed


def left_of_examples(value: Tensor, event_dim: int) -> Tensor:
    """Return draws ``(S, *event)`` that ``Predictive(parallel=True)`` has set as ``(S, 1, *event)``.

    It leaves out the dimension of the examples where a site has an event, so that draws would be taken for examples.
    """
    plates = (handler for handler in _PYRO_STACK if getattr(handler, "name", None) == "_num_predictive_samples")
    for plate in plates:
        if value.shape[: value.dim() - event_dim] == (plate.size,) and plate.dim < -1:
            return value.unflatten(0, (plate.size, *(1,) * (-1 - plate.dim)))
    return value


class checked_guide(Messenger):  # noqa: N801
    """Around the statement of a site that carries its posterior: checks how a replayed guide covers it.

    A layer's weight of the site's density is given to the guide's site too, which Pyro's ELBOs score after the model.

    Raises:
        ValueError: a site that would be drawn from its prior, since the guide has none; one with a weight that an
            AutoGuide draws, whose density stands at another site.
    """

    def _pyro_post_sample(self, msg: Message) -> None:
        own = (local_posteriors, local_priors, guided_local_sites)
        if msg["is_observed"] or msg["stop"] or any(isinstance(handler, own) for handler in _PYRO_STACK):
            return
        name, weight = msg["name"], self.weight
        for handler in _PYRO_STACK:
            if not isinstance(handler, ReplayMessenger) or handler.trace is None:
                continue
            if name not in handler.trace:
                raise ValueError(
                    f"the guide draws no site {name}, which would come from its prior: use guides.for_model(model), "
                    "which covers the sites of single examples under any ELBO, or an ELBO of probattn.inference, which "
                    "draws them from the posterior that their layer computes"
                )
            node = handler.trace.nodes[name]
            if _is_weight(weight) and "weight" not in node["infer"]:
                if isinstance(_inner(node["fn"]), dist.Delta):
                    raise ValueError(
                        f"the density of {name} has a weight in its layer, which an AutoGuide cannot follow: use "
                        "guides.for_model(model, rest=...), or a layer with collapsed=True"
                    )
                node["scale"], node["infer"] = node["scale"] * weight, node["infer"] | {"weight": weight}

    def __init__(self, weight: float | Tensor | None) -> None:
        super().__init__()
        self.weight = weight


def _inside(kind: type[Messenger]) -> Iterator[Messenger]:
    """Pyro's handlers of a kind, from the innermost on."""
    return (handler for handler in reversed(_PYRO_STACK) if isinstance(handler, kind))


def _center(fn: dist.TorchDistribution) -> Tensor:
    """The mean; of a transformed distribution without one, where its base's mean goes."""
    try:
        return fn.mean
    except NotImplementedError:
        inner = _inner(fn)
        if isinstance(inner, ExpandedDistribution):
            return _center(inner.base_dist)
        if not isinstance(inner, TransformedDistribution):
            raise
        value = _center(inner.base_dist)
        for transform in inner.transforms:
            value = transform(value)
        return value


def _is_data_plate(handler: Messenger) -> bool:
    return isinstance(handler, IndepMessenger) and handler.dim == -1


def _expanded(fn: dist.TorchDistribution, dim: int, size: int) -> dist.TorchDistribution:
    """The distribution with that many draws in a batch dimension; flows keep the caches of their transforms."""
    batch_shape = torch.broadcast_shapes(fn.batch_shape, (size,) + (1,) * (-1 - dim))
    # Lengths first: a batch of unknown size is not to be compared with the number of draws (torch.export).
    same = len(batch_shape) == len(fn.batch_shape) and batch_shape == fn.batch_shape
    if same:
        return fn
    inner = _inner(fn)
    if isinstance(inner, TransformedDistribution) and any(map(_has_cache, inner.transforms)):
        return fn.expand(batch_shape)
    return ExpandedDistribution(fn, batch_shape)


def _is_weight(weight: float | Tensor | None) -> bool:
    return isinstance(weight, Tensor) or weight not in (None, 1)


def _has_cache(transform: Transform) -> bool:
    return isinstance(transform, TransformModule) or type(transform).__name__.startswith("Conditioned")


def _inner(fn: dist.TorchDistribution) -> dist.TorchDistribution:
    """The distribution inside ``to_event``."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn


@register_kl(ExpandedDistribution, ExpandedDistribution)
def _kl_expanded(q: ExpandedDistribution, p: ExpandedDistribution) -> Tensor:
    return kl_divergence(q.base_dist, p.base_dist).expand(q.batch_shape)
