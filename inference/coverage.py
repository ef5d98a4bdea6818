"""Coverage check: a guide samples each latent site of its model, in the same plates and with the same scale."""

from collections.abc import Iterator

import pyro.distributions as dist
import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from probattn.families import is_real
from probattn.messages import is_latent, is_of_draws


class CoverageError(ValueError):
    """A guide that does not cover the latent sites of its model; the message names the sites and the remedy."""


def check_coverage(model_trace: Trace, guide_trace: Trace, *, scale: bool = True) -> None:
    """Check what would be silently wrong: a site that the guide misses, or that counts another number of times.

    Args:
        model_trace: of the model, replayed against the guide.
        guide_trace: of the guide.
        scale: compare what makes the loss wrong but not a prediction: sites that the model observes, and scales.

    Raises:
        CoverageError: naming the sites, with the remedy.
    """
    latent, guided = dict(_latent(model_trace)), dict(_latent(guide_trace))
    missing = [name for name, site in latent.items() if name not in guided and "enumerate" not in site["infer"]]
    if missing:
        raise CoverageError(
            f"the guide draws no site {', '.join(missing)} of the model: add it to the guide, or use "
            "guides.for_model(model, rest=AutoNormal), which covers all remaining sites by an AutoGuide"
        )
    known = latent if scale else model_trace.nodes
    unused = [name for name, site in guided.items() if name not in known and not site["infer"].get("is_auxiliary")]
    if unused:
        raise CoverageError(
            f"the guide draws {', '.join(unused)}, which is no latent site of the model: those are "
            f"{', '.join(latent) or 'none'}; build the guide for this program, or hide the site (pyro.poutine.block)"
        )
    for name, site in latent.items():
        if name in guided:
            _check_site(name, site, guided[name], scale=scale)


class guided_by(Messenger):  # noqa: N801 - lower case as pyro's own handlers are
    """Check, around a model that is replayed against a guide, what the replay would hide; used inside the replay.

    Args:
        trace: of the guide; its sites keep the ``infer`` of the model's, which a replay replaces.

    Raises:
        CoverageError: a site with another event shape in the guide; a plate that subsamples other examples there.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def _pyro_sample(self, msg: Message) -> None:
        node = self.trace.nodes.get(msg["name"])
        if node is None or msg["is_observed"]:
            return
        if is_latent(msg):
            _check_event(msg["name"], msg["fn"], node["fn"])
            kept = {key: value for key, value in msg["infer"].items() if key not in ("posterior", "weight")}
            node["infer"].update(kept | node["infer"])
        elif isinstance(rows := msg["value"], Tensor) and not torch.equal(rows, torch.as_tensor(node["value"])):
            raise CoverageError(
                f"plate {msg['name']} has other examples in the guide than in the model: give an AutoGuide "
                "create_plates=lambda ...: pyro.plate(..., subsample=...) with the rows that the model is called with"
            )


def _check_event(name: str, p: dist.TorchDistribution, q: dist.TorchDistribution) -> None:
    if p.event_shape != q.event_shape:
        raise CoverageError(
            f"site {name} has event shape {tuple(p.event_shape)} in the model and {tuple(q.event_shape)} in the guide: "
            "end the guide's distribution with .to_event(...) over the dimensions of one value"
        )


def _check_site(name: str, model: dict, guide: dict, *, scale: bool) -> None:
    p, q = model["fn"], guide["fn"]
    _check_event(name, p, q)
    inner = q
    while hasattr(inner, "base_dist") and not isinstance(inner, dist.TransformedDistribution):
        inner = inner.base_dist
    # The declared support of a transformed distribution is that of its last transform, which need not be exact.
    is_exact = not isinstance(inner, dist.Delta | dist.TransformedDistribution)
    if is_exact and is_real(q.support) and not is_real(p.support):
        raise CoverageError(
            f"site {name} has support {p.support} in the model and {q.support} in the guide: use a guide on the "
            "model's support, such as a dist.TransformedDistribution or a family of guides.for_model by its name"
        )
    if _plates(model) != _plates(guide):
        raise CoverageError(
            f"site {name} is in {_plates(model) or 'no plate'} in the model and in {_plates(guide) or 'no plate'} in "
            "the guide (dimension: size): sample it inside the same pyro.plate, at the same dimension, in both"
        )
    scales = [site["scale"] for site in (model, guide)]
    if scale and not any(isinstance(each, Tensor) and each.numel() > 1 for each in scales):
        p_scale, q_scale = map(float, scales)
        subsampled = any(frame.full_size not in (None, frame.size) for frame in model["cond_indep_stack"])
        if subsampled and abs(p_scale - q_scale) > 1e-6 * p_scale and "weight" not in guide["infer"]:
            raise CoverageError(
                f"site {name} counts {p_scale:.6g} times in the model, whose plate is subsampled, and {q_scale:.6g} "
                "times in the guide: give the guide's plate the same size and subsample_size"
            )


def _latent(trace: Trace) -> Iterator[tuple[str, dict]]:
    return ((name, site) for name, site in trace.nodes.items() if site["type"] == "sample" and is_latent(site))


def _plates(site: dict) -> dict[int, int]:
    frames = (frame for frame in site["cond_indep_stack"] if frame.vectorized and not is_of_draws(frame))
    return {frame.dim: int(frame.size) for frame in sorted(frames, key=lambda frame: frame.dim)}
