"""Coverage check: a guide samples each latent site of its model, on the same support and in the same plates."""

from collections.abc import Iterator

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.poutine import Trace
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import Message
from torch.distributions import Independent, constraints
from torch.distributions.constraints import Constraint

from probattn.functional import errors
from probattn.handlers import is_latent, is_of_draws
from probattn.pyro_compat import is_subsample


def check_coverage(model_trace: Trace, guide_trace: Trace, *, scale: bool = True) -> None:
    """Check that a pair of traces has a valid ELBO.

    Sites that the model observes (:func:`pyro.condition`) are ignored in the guide, and so are auxiliary sites.

    Args:
        model_trace: of the model, replayed against the guide.
        guide_trace: of the guide; sites that carry their posterior may be missing.
        scale: compare the subsampling scales of plates; predictions do not depend on them.

    Raises:
        ValueError: naming each latent site that the guide lacks, each guide site that the model lacks, and the first
            whose event shape, support, plates or scale differ, with the remedy.
    """
    latent, guided = dict(_latent(model_trace)), dict(_latent(guide_trace))
    missing = [
        name
        for name, site in latent.items()
        if name not in guided and not {"posterior", "enumerate"} & site["infer"].keys()
    ]
    if missing:
        raise ValueError(
            f"the guide draws no site {', '.join(missing)} of the model: add it to the guide, or use "
            "guides.for_model(model, rest=AutoNormal), which covers all remaining sites by an AutoGuide"
        )
    unused = [
        name for name, site in guided.items() if name not in model_trace.nodes and not site["infer"].get("is_auxiliary")
    ]
    if unused:
        raise ValueError(
            f"the guide draws {', '.join(unused)}, which the model does not: its latent sites are "
            f"{', '.join(latent) or 'none'}; rename the site, hide it (pyro.poutine.block), or mark it "
            'infer={"is_auxiliary": True}'
        )
    for name, site in latent.items():
        if name in guided:
            _check_site(name, site, guided[name])
            if scale and errors.recorded_failures() is None:
                _check_scale(name, site, guided[name])


class checked_replay(ReplayMessenger):  # noqa: N801 - lower case as pyro's own handlers are
    """Replay a guide's trace, keeping the model's ``infer`` at its sites except the posterior at guided ones.

    Args:
        trace: of the guide.

    Raises:
        ValueError: a site with another event shape in the guide.
    """

    def _pyro_sample(self, msg: Message) -> None:
        infer = msg["infer"]
        super()._pyro_sample(msg)
        if msg["infer"] is not infer and is_latent(msg):
            _check_event(msg["name"], msg["fn"], self.trace.nodes[msg["name"]]["fn"])
            msg["infer"] = {key: value for key, value in infer.items() if key != "posterior"} | msg["infer"]


def is_real(support: Constraint) -> bool:
    """Return True where a support is all of ℝ, elementwise."""
    return _base(support) is constraints.real


def _check_site(name: str, model: dict, guide: dict) -> None:
    p, q = model["fn"], guide["fn"]
    _check_event(name, p, q)
    ours, theirs = _plates(model), _plates(guide)
    if ours != theirs:
        raise ValueError(
            f"site {name} is in {_format(ours)} in the model and in {_format(theirs)} in the guide: sample it inside "
            "the same pyro.plate, at the same dimension, in both"
        )
    if not _is_within(guide, p):
        raise ValueError(
            f"site {name} has support {p.support} in the model and {q.support} in the guide: use a guide on the "
            "model's support, such as a dist.TransformedDistribution or a family of guides.for_model by its name"
        )


def _check_scale(name: str, model: dict, guide: dict) -> None:
    factor = 1.0
    for frame in model["cond_indep_stack"]:
        factor *= (frame.full_size or frame.size) / frame.size
    weight = 1.0 if "weight" in guide["infer"] else _number(model["infer"].get("weight", 1.0))
    whole = _number(guide["scale"]) * weight * factor
    if abs(factor - 1) > 1e-6 and whole > 0 and abs(_number(model["scale"]) / whole - 1) < 1e-4:
        raise ValueError(
            f"site {name} counts {factor:.6g} times in the model, whose plate is subsampled, and once in the guide: "
            "give the guide's plate the same size and subsample_size"
        )


def _check_event(name: str, p: dist.TorchDistribution, q: dist.TorchDistribution) -> None:
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"site {name} has event shape {tuple(p.event_shape)} in the model and {tuple(q.event_shape)} in the guide: "
            "end the guide's distribution with .to_event(...) over the dimensions of one value"
        )


def _latent(trace: Trace) -> Iterator[tuple[str, dict]]:
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and is_latent(site) and not is_subsample(site["fn"]):
            yield name, site


def _plates(site: dict) -> set[tuple[int, int]]:
    frames = (frame for frame in site["cond_indep_stack"] if frame.vectorized and not is_of_draws(frame))
    return {(frame.dim, int(frame.size)) for frame in frames}


def _format(plates: set[tuple[int, int]]) -> str:
    return " and ".join(f"a plate of size {size} at dim {dim}" for dim, size in sorted(plates)) or "no plate"


def _is_within(guide: dict, p: dist.TorchDistribution) -> bool:
    """Return True if the guide's support lies within the model's; for a point mass, if its value does."""
    q = guide["fn"]
    while isinstance(q, Independent | ExpandedDistribution | dist.MaskedDistribution):
        q = q.base_dist
    if isinstance(q, dist.Delta):
        return _holds(p.support, guide["value"])
    ours, theirs = _base(p.support), _base(guide["fn"].support)
    mapped = isinstance(q, torch.distributions.TransformedDistribution)  # its declared codomain is not exact
    if ours is constraints.real or (theirs is constraints.real and not mapped):
        return ours is constraints.real
    return _holds(p.support, guide["value"])


def _holds(support: Constraint, value: torch.Tensor) -> bool:
    if errors.recorded_failures() is not None:  # the host must not wait for the device
        return True
    try:
        return bool(support.check(value).all())
    except RuntimeError:  # under torch.vmap there are no values to check
        return True


def _base(support: Constraint) -> Constraint:
    while isinstance(support, (constraints.independent, constraints.MixtureSameFamilyConstraint)):
        support = support.base_constraint
    return constraints.real if type(support) is type(constraints.real) else support


def _number(scale: float | torch.Tensor) -> float:
    return scale.flatten()[0].item() if isinstance(scale, torch.Tensor) else float(scale)
