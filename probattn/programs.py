"""Programs with layers of this library: their module, its layers, and the global latent sites of
these, found without data."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyro.distributions as dist
import pyro.poutine as poutine
from pyro.nn import PyroModule, pyro_method
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from probattn.examples import examples
from probattn.local_sites import LocalPosteriors
from probattn.messages import is_latent, law_of, value_of
from probattn.pyro_internals import handlers_around
from probattn.sites import SiteModule
from probattn.threads import one_thread_at_a_time

Program = Callable[..., Any]
"""A Pyro model or guide: a module, a function, or either of them wrapped by handlers."""


def latent_sites(model: Program) -> Iterator[tuple[str, dist.TorchDistribution]]:
    """Yield names and current priors of a model's global latent sites, hyperparameters before what
    depends on them.

    Args:
        model: as for :func:`~probattn.guides.for_model`.

    Raises:
        ValueError: a prior with a batch shape; two layers of one name.
        TypeError: a function, whose layers cannot be found.
    """
    handlers, _ = handlers_around(model)
    module = module_of(model)
    with one_thread_at_a_time, poutine.block(), poutine.trace() as run, ExitStack() as stack:
        for handler in handlers:  # they see the priors' program as they see the module's
            stack.enter_context(handler)
        sample_priors(module)
    for name, node in run.trace.nodes.items():
        if is_latent(node):
            prior = law_of(node)
            if prior.batch_shape:
                dims = len(prior.shape())
                raise ValueError(
                    f"the prior of site {name} has batch shape {tuple(prior.batch_shape)}, which "
                    f"belongs to its event: end it with .to_event({dims})"
                )
            yield name, prior


@one_thread_at_a_time
def sample_priors(module: nn.Module) -> dict[str, Tensor]:
    """Sample the global latent sites of a module's layers from their priors, and return their
    values by name.

    Raises:
        ValueError: two layers of one name.
    """

    def sample(root: Any) -> None:
        for layer in layers_of(root):
            for name, prior in layer.sites().items():
                layer.sample(name, prior)

    # PyroModules name their samples inside a call alone.
    run = pyro_method(sample) if isinstance(module, PyroModule) else sample
    with examples((0,)):
        trace = poutine.trace(run).get_trace(module)
    return values_by_name(trace)


def values_by_name(trace: Trace) -> dict[str, Tensor]:
    """Return the values of the sites of a run."""
    nodes = trace.nodes.items()
    return {name: value_of(node) for name, node in nodes if node["type"] == "sample"}


def layers_of(module: nn.Module) -> Iterator[SiteModule]:
    """Return the layers of this library in a module."""
    return (layer for layer in module.modules() if isinstance(layer, SiteModule))


def module_of(model: Program) -> nn.Module:
    """Return the module inside handlers.

    Raises:
        TypeError: a function, whose layers cannot be found.
    """
    _, module = handlers_around(model)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"the layers of {getattr(module, '__name__', module)!r} cannot be found in a function: "
            "give its layers, guides.for_model(nn.ModuleList([first, second])), and name them, "
            "name_layers(...)"
        )
    return module


def leaves_local_sites(model: Program) -> bool:
    """Return True if a model has local sites whose posterior its layers compute, and does not draw
    them itself."""
    handlers, module = handlers_around(model)
    if any(isinstance(handler, LocalPosteriors) for handler in handlers):
        return False
    return any(layer.has_local_sites() for layer in layers_of(module))
