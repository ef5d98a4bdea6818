"""Vectorised or sequential sampling: detect models whose shapes do not broadcast over a dimension of samples."""

import logging
from collections.abc import Callable
from weakref import WeakSet

import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from torch import nn

from probattn.draws import draws
from probattn.guides import Guide, Program, latent_sites, unwrapped
from probattn.inference.elbo import ELBOLoss
from probattn.inference.programs import own_parameters
from probattn.messages import is_global_latent, is_of_draws
from probattn.pyro_internals import sampled_attributes

NON_BROADCASTING = (ValueError, RuntimeError, IndexError, TypeError, AssertionError)
"""Errors of a model whose shapes do not broadcast over a dimension of samples."""
_WARNED: WeakSet[nn.Module] = WeakSet()
_LOGGER = logging.getLogger("probattn")


def has_bayesian_weights(model: Program) -> bool:
    """Return True if a weight of a PyTorch module is a ``PyroSample``; these do not broadcast over samples."""
    module = _module(model)
    paths = () if module is None else {name.rpartition(".")[0] for name in sampled_attributes(module)}
    return any(_is_torch_module(module.get_submodule(path)) for path in paths)


def broadcasts(model: nn.Module, guide: nn.Module, batch: Callable[[], tuple]) -> bool:
    """Return True if training with one sample per example works; a trial decides for global sites outside layers.

    Args:
        model, guide: materialised modules.
        batch: returns ``(x, y)`` or ``(x, y, mask)`` on the model's device; called only for a trial.
    """
    if has_bayesian_weights(model):
        warn_sequential(model, "weights of its layers are latent sites (PyroSample)")
        return False
    if isinstance(guide, Guide) and guide.rest is None:
        return True  # it samples no sites but those of layers
    inputs = batch()
    with own_parameters(model, guide), torch.no_grad(), torch.random.fork_rng():
        trace = poutine.trace(guide).get_trace(*inputs)
        if not global_sites_outside_layers(model, trace):
            return True
        try:
            with draws("example"):
                ELBOLoss(model, guide)(*inputs)
        except NON_BROADCASTING:
            warn_sequential(model, "it does not broadcast over draws")
            return False
    return True


def global_sites_outside_layers(model: nn.Module, trace: Trace) -> list[dict]:
    """Return the global latent sites of a trace that belong to no attention layer of the model."""
    of_layers = set() if _module(model) is None else {name for name, _ in latent_sites(model)}
    sites = (site for site in trace.nodes.values() if is_global_latent(site, trace))
    return [site for site in sites if site["name"] not in of_layers]


def has_ambiguous_shapes(model: nn.Module, trace: Trace) -> bool:
    """Return True if a plate of a site outside layers, or the examples, may be taken for the samples' dimension."""
    sites = global_sites_outside_layers(model, trace)
    plated = any(frame.vectorized and not is_of_draws(frame) for site in sites for frame in site["cond_indep_stack"])
    return plated or bool(sites and len(trace.nodes["y"]["fn"].batch_shape) == 1)


def warn_sequential(model: nn.Module, reason: str) -> None:
    """Log once per model that its samples run one after another."""
    if model not in _WARNED:
        _WARNED.add(model)
        _LOGGER.warning("draws of %s run one after another (vectorize=False): %s", type(model).__name__, reason)


def _module(program: Program) -> nn.Module | None:
    inner = unwrapped(program)
    return inner if isinstance(inner, nn.Module) else None


def _is_torch_module(module: nn.Module) -> bool:
    return any(
        kind.__module__.startswith("torch.nn.modules.") and kind is not nn.Module for kind in type(module).__mro__
    )
