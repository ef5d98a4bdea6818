"""Samples at once, or one after another: which models broadcast over a dimension of samples."""

import logging
from collections.abc import Callable, Collection, Iterable
from weakref import WeakSet

import torch
from pyro.poutine import Trace
from torch import nn

from probattn.guides import Guide, latent_sites, unwrapped
from probattn.inference.prediction.latents import prior_trace, run_guide
from probattn.inference.programs import own_parameters
from probattn.messages import is_global_latent
from probattn.pyro_internals import sampled_attributes

_WARNED: WeakSet[nn.Module] = WeakSet()
_LOGGER = logging.getLogger("probattn")


def broadcasts(
    model: nn.Module, guide: nn.Module | None, batch: Callable[[], tuple], *, sites: Collection[str] | None = None
) -> bool:
    """Return True if all global latent sites belong to attention layers, whose shapes broadcast over samples.

    The samples of other models run one after another, which is logged once per model.

    Args:
        model, guide: materialised modules; without a guide, the model runs once.
        batch: returns ``(x, y)`` or ``(x, y, mask)`` on the model's device; called only for programs of the user's.
        sites: names of the latent sites, if they are known.
    """
    if isinstance(guide, Guide) and guide.rest is None:
        return True  # it samples no sites but those of layers
    if sites is not None:
        others = outside_layers(model, sites)
    elif guide is None and hasattr(unwrapped(model), "likelihood_of") and not sampled_attributes(unwrapped(model)):
        return True  # one of our models, whose hooks would see another run; its first run is checked
    else:
        with own_parameters(model, guide), torch.no_grad(), torch.random.fork_rng():
            trace = prior_trace(model, batch()) if guide is None else run_guide(model, guide, batch())
            others = outside_layers(model, global_sites(trace))
    if others and model not in _WARNED:
        _WARNED.add(model)
        _LOGGER.warning(
            "samples of %s run one after another (vectorize=False): %s belongs to no attention layer; pass "
            "vectorize=True if the shapes of the model broadcast over samples",
            type(model).__name__,
            others[0],
        )
    return not others


def global_sites(trace: Trace) -> list[str]:
    """Return the names of the global latent sites of a trace."""
    nodes = trace.nodes.items()
    return [name for name, site in nodes if is_global_latent(site, trace) and not site["infer"].get("is_auxiliary")]


def outside_layers(model: nn.Module, sites: Iterable[str]) -> list[str]:
    """Return the names of sites that belong to no attention layer of a model."""
    of_layers = {name for name, _ in latent_sites(model)} if isinstance(unwrapped(model), nn.Module) else set()
    return [name for name in sites if name not in of_layers]
