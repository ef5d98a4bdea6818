"""Draws at once or one after another: models whose shapes do not broadcast over a dimension of draws."""

import logging
from collections.abc import Callable
from weakref import WeakSet

import pyro.poutine as poutine
import torch
from torch import nn

from probattn import guides
from probattn.handlers import draws, global_sites_only, is_global_latent
from probattn.inference.elbo import Trace_ELBO
from probattn.programs import Program, local_params, modules
from probattn.pyro_compat import has_pyro_samples

NON_BROADCASTING = (ValueError, RuntimeError, IndexError, TypeError, AssertionError)
"""Errors of a model whose shapes do not broadcast over a dimension of draws."""
_NOTED: WeakSet[nn.Module] = WeakSet()
_LOGGER = logging.getLogger("probattn")


def has_bayesian_weights(model: Program) -> bool:
    """Return True where a weight of a module of PyTorch is a ``PyroSample``: these take no dimension of draws."""
    return any(
        has_pyro_samples(part) and _is_of_torch(part)
        for module in modules(model)
        for part in module.modules()
    )


def broadcasts(model: nn.Module, guide: nn.Module, batch: Callable[[], tuple]) -> bool:
    """Return True where training with one draw per example runs; models with global sites outside layers are tried.

    Args:
        model, guide: materialised modules.
        batch: gives ``(x, y)`` or ``(x, y, mask)``, on the model's device; called only for a trial.
    """
    if has_bayesian_weights(model):
        note_sequential(model, "weights of its layers are latent sites (PyroSample)")
        return False
    if isinstance(guide, guides.Guide) and guide.rest is None:
        return True  # it draws no sites but those of layers
    given = batch()
    with torch.no_grad(), torch.random.fork_rng(), local_params(model, guide):
        with global_sites_only():
            trace = poutine.trace(guide).get_trace(*given)
        drawn = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
        shared = {name for name, site in drawn.items() if is_global_latent(site, trace)}
        if not shared - {name for name, _ in guides.latent_sites(model)}:
            return True
        try:
            with draws("example"):
                Trace_ELBO().differentiable_loss(model, guide, *given)
        except NON_BROADCASTING:
            note_sequential(model, "it does not broadcast over draws")
            return False
    return True


def note_sequential(model: nn.Module, why: str) -> None:
    """Tell once for each model, in the log of this library, that its draws run one after another."""
    if model not in _NOTED:
        _NOTED.add(model)
        _LOGGER.warning("draws of %s run one after another (vectorize=False): %s", type(model).__name__, why)


def _is_of_torch(module: nn.Module) -> bool:
    return any(
        kind.__module__.startswith("torch.nn.modules.") and kind is not nn.Module for kind in type(module).__mro__
    )
