"""Checks of a site while it is sampled: the values that handlers give it, and the guide that it is
replayed against."""

import pyro.distributions as dist
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import Message
from torch import Tensor

from probattn.messages import seen_by, values_of
from probattn.pyro_internals import HANDLERS
from probattn.site_info import info_of, mark


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
