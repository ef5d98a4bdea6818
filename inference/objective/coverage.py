"""Coverage check: a guide samples each latent site of its model, in the same plates and with the
same scale."""

import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from probattn.messages import is_auxiliary, is_latent, is_of_draws, law_of
from probattn.site_info import info_of, mark


def check_coverage(
    model_trace: Trace,
    guide_trace: Trace,
    *,
    scale: bool = True,
    enumerates: bool = False,
) -> None:
    """Check what would be silently wrong: a site that the guide misses, or that counts another
    number of times.

    Args:
        model_trace: of the model, replayed against the guide.
        guide_trace: of the guide.
        scale: compare what makes the loss wrong but not a prediction: sites that the model
            observes, and scales.
        enumerates: the loss sums discrete sites of the model out.

    Raises:
        ValueError: naming the sites.
    """
    latent = _layouts(model_trace, scale=scale)
    guided = _layouts(guide_trace, scale=scale)
    known = latent if scale else model_trace.nodes
    problems = []
    for name, layout in latent.items():
        is_enumerated = "enumerate" in (model_trace.nodes[name]["infer"] or ())
        if name not in guided and is_enumerated and scale and not enumerates:
            problems.append(f"site {name} is enumerated, which TraceEnum_ELBO alone does")
        elif name not in guided and not is_enumerated:
            problems.append(
                f"the guide draws no site {name} of the model (see guides.for_model and its rest=)"
            )
        elif guided.get(name, layout) != layout:
            problems.append(
                f"site {name} has {layout} in the model and {guided[name]} in the guide"
            )
    for name in guided:
        if name not in known and not is_auxiliary(guide_trace.nodes[name]):
            problems.append(f"the guide draws {name}, which is no latent site of the model")
    if problems:
        raise ValueError("; ".join(problems))


class guided_by(Messenger):  # noqa: N801 - lower case as pyro's own handlers are
    """Check, around a model that is replayed against a guide, what the replay would hide; used
    inside the replay.

    Args:
        trace: of the guide; its sites keep the ``infer`` of the model's, which a replay replaces.

    Raises:
        ValueError: a plate that subsamples other examples in the guide.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def _pyro_sample(self, msg: Message) -> None:
        node = self.trace.nodes.get(str(msg["name"]))
        value = msg["value"]
        if node is None or msg["is_observed"]:
            return
        if is_latent(msg):
            of_guide = info_of(node)
            of_model = info_of(msg)
            node["infer"] = (msg["infer"] or {}) | (node["infer"] or {})
            mark(
                node,
                local=of_model.local,
                regulariser=of_model.regulariser,
                posterior=of_guide.posterior,
                weight=of_guide.weight,
            )
        elif isinstance(value, Tensor) and not torch.equal(value, torch.as_tensor(node["value"])):
            raise ValueError(
                f"plate {msg['name']} has other rows in the guide: see create_plates of AutoGuides"
            )


def _layouts(trace: Trace, *, scale: bool) -> dict[str, str]:
    """Return event shape and plates of each latent site, in words; with ``scale`` the plates' full
    sizes, too."""
    layouts = {}
    for name, site in trace.nodes.items():
        if not is_latent(site):
            continue
        plates = []
        for frame in site["cond_indep_stack"]:
            if frame.vectorized and not is_of_draws(frame):
                sizes = (frame.dim, int(frame.size), frame.full_size or frame.size)
                plates.append(sizes if scale else sizes[:2])
        shape = f"event shape {tuple(law_of(site).event_shape)}"
        layouts[name] = f"{shape} and plates (dim, rows, size) {sorted(plates)}"
    return layouts
