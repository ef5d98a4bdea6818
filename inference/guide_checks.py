"""Guides whose parameters are created in their first run, AutoGuides and functions, and guides of another model."""

from typing import Any

import torch
from pyro.infer.autoguide import AutoCallable, AutoDelta, AutoGuide, AutoLaplaceApproximation
from torch import nn

from probattn.families import stddev_of
from probattn.guides import Guide, Program, latent_sites, unwrapped
from probattn.inference.programs import ProgramModule, own_parameters


def is_lazy(guide: nn.Module) -> bool:
    """Return True for guides with parameters that do not exist yet."""
    return lacks_prototype(guide) or any(
        isinstance(part, ProgramModule) and not part.has_run for part in guide.modules()
    )


def lacks_prototype(guide: Program) -> bool:
    """Return True for a guide that is or holds an AutoGuide that has not run yet."""
    inner = unwrapped(guide)
    return any(
        isinstance(part, AutoGuide) and not isinstance(part, AutoCallable) and part.prototype_trace is None
        for part in (inner.modules() if isinstance(inner, nn.Module) else ())
    )


def materialise(guide: nn.Module, batch: tuple[Any, ...]) -> None:
    """Create the parameters of an AutoGuide or a function by one run, before an optimiser or a checkpoint needs them.

    Guides of this library have theirs from construction; for them this does nothing.

    Args:
        guide: any guide, a function as :func:`probattn.inference.programs.as_module` wraps it.
        batch: the arguments of the model, ``(x, y)`` or ``(x, y, mask)``.
    """
    if is_lazy(guide):
        with torch.no_grad(), own_parameters(guide):  # an AutoGuide would take those of another from Pyro's store
            guide.materialise(*batch) if isinstance(guide, ProgramModule) else guide(*batch)
        check_local(guide)


def check(model: Program, guide: nn.Module) -> None:
    """Check that a guide was built for this model, that AutoGuides leave out local sites, and point masses on u.

    Raises:
        ValueError: a guide of another model; an AutoGuide of local sites; one of Pyro's point masses on u where Λ is
            learned. The message names the site and what to use.
    """
    check_local(guide)
    inner = unwrapped(model)
    known = set(inner.modules()) if isinstance(inner, nn.Module) else {inner}
    for part in guide.modules():
        if isinstance(part, Guide) and unwrapped(part._model[0]) not in known and isinstance(inner, nn.Module):
            raise ValueError(
                "this guide was built for another model, whose priors it would follow: build it with "
                "guides.for_model(model), and copy the two together, copy.deepcopy((model, guide))"
            )
    if any(isinstance(part, (AutoDelta, AutoLaplaceApproximation)) for part in guide.modules()):
        for site, prior in latent_sites(model):
            if stddev_of(prior).requires_grad:
                raise ValueError(
                    f"this guide is a point mass on {site} itself, whose density grows without bound as the learned Λ "
                    'runs to 0: build the layer with learn_scale=False, or use guides.for_model(model, "delta")'
                )


def check_local(guide: nn.Module) -> None:
    """Check that no AutoGuide covers local sites that carry their posterior.

    Raises:
        ValueError: naming the site and what to build the guide on.
    """
    for part in guide.modules():
        if isinstance(part, AutoGuide) and part.prototype_trace is not None:
            for name, node in part.prototype_trace.nodes.items():
                if "posterior" in node.get("infer", {}) and not node["is_observed"]:
                    raise ValueError(
                        f"this AutoGuide also guides {name}, one value per example, whose posterior its layer has: "
                        f"build it on the rest, {type(part).__name__}(local_posteriors(model)), or use "
                        f"guides.for_model(model, rest={type(part).__name__})"
                    )
