"""Local sites: their plate and scale, and whether they are sampled from their prior or their posterior."""

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import Message
from pyro.poutine.trace_struct import Trace
from torch import Tensor

from probattn.handlers.messages import is_amortised, unwrapped
from probattn.handlers.threads import Handler
from probattn.pyro_compat import HANDLER_STACK, is_subsample


class local_sites(Handler):  # noqa: N801
    """Treat sites with ``infer={"local": True}`` as one per example of a minibatch of the data set.

    They get the data plate (dimension −1) and the scale ``num_data / batch``; global sites are unchanged.

    Args:
        batch: number of examples in the batch.
        num_data: number of examples in the data set.

    Raises:
        ValueError: a batch without examples.
    """

    def __init__(self, *, batch: int, num_data: int) -> None:
        super().__init__()
        if batch == 0:
            raise ValueError("the batch has no examples")
        self.frame = CondIndepStackFrame("data", dim=-1, size=batch, counter=0, full_size=num_data)
        self.factor = num_data / batch

    def _pyro_sample(self, msg: Message) -> None:
        if msg["infer"].get("local"):
            msg["cond_indep_stack"] = (self.frame, *msg["cond_indep_stack"])
            msg["scale"] = msg["scale"] * self.factor


class local_posteriors(Handler):  # noqa: N801
    """Sample local latent sites that carry their posterior from it, in the model's own pass.

    Used around a model that is replayed against a guide; sites that the guide has sampled are replayed.

    Args:
        guide_trace: the guide's trace, to which the sites are added, or None.
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


class labels_at(Handler):  # noqa: N801
    """Mark the site of the labels, which :class:`draws` does not expand beyond the draws that it depends on.

    Args:
        name: name of the site.
        drawn: False leaves out the draw of labels of this library's models, which do not use it and for which the host
            would wait for a GPU; their value is zeros on the CPU.
    """

    def __init__(self, name: str, *, drawn: bool = True) -> None:
        super().__init__()
        self.name, self.drawn = name, drawn

    def _pyro_sample(self, msg: Message) -> None:
        if msg["name"] != self.name:
            return
        if not self.drawn and msg["infer"].get("label") and not msg["done"]:
            msg["value"], msg["done"] = torch.zeros(()).expand(msg["fn"].shape()), True
        msg["infer"] = msg["infer"] | {"label": True}


class local_priors(Handler):  # noqa: N801
    """Let local latent sites be sampled from their priors, as the global ones of the replay were."""


class global_sites_only(Handler):  # noqa: N801
    """Let guides of this library leave local sites to the model's own pass (see :class:`local_posteriors`)."""


class guided_local_sites(Handler):  # noqa: N801
    """Turn a run of the model into a guide of its local sites: each is sampled from the posterior that it carries.

    All other sites are hidden from outer handlers. Used by guides under Pyro's own ELBOs, which run the model again.

    Attributes:
        values: the samples by site.
        has_met: True once such a site has run, conditioned or not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Tensor] = {}
        self.has_met = False

    def _pyro_sample(self, msg: Message) -> None:
        if is_subsample(msg["fn"]):
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
    """Check how a replayed guide covers a site that carries its posterior; used around that site.

    A layer's weight of the site's density is applied to the guide's site too, which Pyro's ELBOs score after the model.

    Args:
        weight: the layer's weight, or None.

    Raises:
        ValueError: a site missing in the guide, which would be sampled from its prior; a weighted site that an
            AutoGuide samples, whose density belongs to another site.
    """

    def _pyro_post_sample(self, msg: Message) -> None:
        own = (local_posteriors, local_priors, guided_local_sites)
        if msg["is_observed"] or msg["stop"] or any(isinstance(handler, own) for handler in HANDLER_STACK):
            return
        name, weight = msg["name"], self.weight
        for handler in HANDLER_STACK:
            if not isinstance(handler, ReplayMessenger) or handler.trace is None:
                continue
            if name not in handler.trace:
                raise ValueError(
                    f"the guide draws no site {name}, which would come from its prior: use guides.for_model(model), "
                    "which covers local sites under any ELBO, or an ELBO of probattn.inference, which samples them "
                    "from the posterior that their layer computes"
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
