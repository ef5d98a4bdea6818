"""Checks that a guide fits its model, beyond the coverage of its sites."""

import pyro.poutine as poutine
from pyro.infer.autoguide import AutoDelta, AutoGuide, AutoLaplaceApproximation
from torch import nn

from probattn.families import stddev_of
from probattn.guides.guide import Guide
from probattn.guides.layer_sites import latent_sites
from probattn.programs import Program, modules


def global_part(model: Program) -> Program:
    """Return the model without the local sites that carry their own posterior: the part to build an AutoGuide on.

    >>> guide = AutoNormal(guides.global_part(model))  # doctest: +SKIP
    """
    return poutine.block(model, hide_fn=lambda msg: "posterior" in msg["infer"])


def check(model: Program, guide: nn.Module) -> None:
    """Check that a guide was built for this model, that AutoGuides leave out local sites, and point masses on u.

    Raises:
        ValueError: a guide of another model; an AutoGuide of local sites; one of Pyro's point masses on u where Λ is
            learned. The message names the site and what to use.
    """
    check_global(guide)
    known = {id(part) for module in modules(model) for part in module.modules()}
    for part in guide.modules():
        if isinstance(part, Guide) and any(id(held) not in known for held in modules(part._model[0])):
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


def check_global(guide: nn.Module) -> None:
    """Check that no AutoGuide covers local sites that carry their posterior.

    Raises:
        ValueError: naming the site and what to build the guide on.
    """
    for part in guide.modules():
        if isinstance(part, AutoGuide) and part.prototype_trace is not None:
            for name, node in part.prototype_trace.nodes.items():
                if "posterior" in node.get("infer", {}):
                    raise ValueError(
                        f"this AutoGuide also guides {name}, one value per example, whose posterior its layer has: "
                        f"build it on the rest, {type(part).__name__}(guides.global_part(model)), or use "
                        f"guides.for_model(model, rest={type(part).__name__})"
                    )
