"""AutoGuides, whose parameters are created in their first run, and guides that are silently wrong
for a model."""

from typing import Any

import pyro
import torch
from pyro.infer.autoguide import AutoCallable, AutoDelta, AutoGuide, AutoLaplaceApproximation
from torch import nn

from probattn.distributions import stddev_of
from probattn.guides import Guide, Program, latent_sites, module_of
from probattn.site_info import info_of
from probattn.threads import one_thread_at_a_time


def is_lazy(guide: nn.Module) -> bool:
    """Return True for a guide that is or holds an AutoGuide without parameters, which has not run
    yet."""
    autos = (module for module in guide.modules() if isinstance(module, AutoGuide))
    return any(auto.prototype_trace is None for auto in autos if not isinstance(auto, AutoCallable))


@one_thread_at_a_time
def materialise(guide: nn.Module, batch: tuple[Any, ...]) -> None:
    """Create the parameters of an AutoGuide by one run, before an optimiser or a checkpoint needs
    them.

    Guides of this library have theirs from construction; for them this does nothing.

    Args:
        guide: any guide.
        batch: the arguments of the model, ``(x, y)`` or ``(x, y, mask)``.
    """
    if is_lazy(guide):
        # In a store of its own: it would take those of another guide from Pyro's.
        with torch.no_grad(), pyro.get_param_store().scope():
            guide(*batch)
        check_local(guide)


def check_modules(model: Program, guide: Program) -> None:
    """Check that model and guide are modules, whose parameters an optimiser of PyTorch finds.

    Raises:
        TypeError: a function, or a module under handlers.
    """
    for role, program in (("model", model), ("guide", guide)):
        if not isinstance(program, nn.Module):
            raise TypeError(
                f"the {role} is no module, so its parameters are in Pyro's store: train it by "
                "pyro.infer.SVI(model, guide, optim, loss).step(x, y), or make it a PyroModule"
            )


def check(model: Program, guide: nn.Module) -> None:
    """Check that a guide was built for this model, that AutoGuides leave out local sites, and point
    masses on u.

    Raises:
        ValueError: a guide of another model; an AutoGuide of local sites; one of Pyro's point
            masses on u where Λ is learned. The message names the site and what to use.
    """
    check_local(guide)
    known = set(module_of(model).modules())
    covered: set[str] = set()
    has_points = False
    for module in guide.modules():
        has_points |= isinstance(module, AutoDelta | AutoLaplaceApproximation)
        if isinstance(module, Guide):
            covered |= set(module.sites)
            if module_of(module._model[0]) not in known:
                raise ValueError(
                    "the guide was built for another model: copy both together, "
                    "copy.deepcopy((model, guide))"
                )
    for site, prior in latent_sites(model) if has_points else ():
        if site not in covered and stddev_of(prior).requires_grad:
            raise ValueError(
                f"a point mass on {site} has an unbounded density as the learned Λ goes to 0. "
                'Build the layer with learn_scale=False, or use guides.for_model(model, "delta")'
            )


def check_local(guide: nn.Module) -> None:
    """Check that no AutoGuide covers local sites that carry their posterior.

    Raises:
        ValueError: naming the site and what to build the guide on.
    """
    for module in guide.modules():
        if not isinstance(module, AutoGuide) or module.prototype_trace is None:
            continue
        for name, node in module.prototype_trace.nodes.items():
            is_sample = node.get("type") == "sample"
            if is_sample and not node["is_observed"] and info_of(node).posterior is not None:
                raise ValueError(
                    f"this AutoGuide also guides {name}, whose posterior its layer has: build it "
                    f"on the rest, {type(module).__name__}(local_posteriors(model)), or use "
                    "guides.for_model(model, rest=...)"
                )
