"""Sites of single examples: their plate and scale, and whether they come from their prior or their posterior."""

import pyro.distributions as dist
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK, Message
from pyro.poutine.subsample_messenger import _Subsample
from pyro.poutine.trace_struct import Trace
from torch import Tensor

from probattn.handlers.messages import is_amortised, unwrapped


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
                if isinstance(unwrapped(node["fn"]), dist.Delta):
                    raise ValueError(
                        f"the density of {name} has a weight in its layer, which an AutoGuide cannot follow: use "
                        "guides.for_model(model, rest=...), or a layer with collapsed=True"
                    )
                node["scale"], node["infer"] = node["scale"] * weight, node["infer"] | {"weight": weight}

    def __init__(self, weight: float | Tensor | None) -> None:
        super().__init__()
        self.weight = weight


def _is_weight(weight: float | Tensor | None) -> bool:
    return isinstance(weight, Tensor) or weight not in (None, 1)
