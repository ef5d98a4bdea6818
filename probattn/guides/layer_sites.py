"""Global latent sites of a model's attention layers, with their priors."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from probattn.attention.base import ProbabilisticAttention
from probattn.handlers import exclusive
from probattn.programs import FunctionModule, Program, modules
from probattn.pyro_compat import module_path, naming_scope


def latent_sites(model: Program, *, at: Messenger | None = None) -> Iterator[tuple[str, dist.TorchDistribution]]:
    """Yield names and current priors of a model's global latent sites, hyperparameters before what depends on them.

    Args:
        model: a module that holds layers of this library (or is one), or a program that calls such modules.
        at: a handler that sets hyperparameters; by default they are sampled.

    Raises:
        ValueError: a layer whose sites would not be named by its path, because a container above it is a plain
            module; a prior with a batch shape.
    """
    for layer, path in attention_layers(model):
        with exclusive(), poutine.block(), at or nullcontext(), poutine.trace() as traced:
            own = priors_at_sites(layer)
        drawn = {name: node["fn"] for name, node in traced.trace.nodes.items() if node["type"] == "sample"}
        for site, prior in (*drawn.items(), *((site_name(path, name), own[name]) for name in own)):
            if prior.batch_shape:
                dims = len(prior.batch_shape) + len(prior.event_shape)
                raise ValueError(
                    f"the prior of site {site} has batch shape {tuple(prior.batch_shape)}, which belongs to its event: "
                    f"end it with .to_event({dims - prior.event_dim})"
                )
            yield site, prior


def priors_of(model: Program) -> Program:
    """Return a program that samples the global sites of a model's layers from their priors."""

    def run(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        values = {}
        for layer, path in attention_layers(model):
            for name, prior in priors_at_sites(layer).items():
                site = site_name(path, name)
                values[site] = pyro.sample(site, prior)
        return values

    return run


def attention_layers(model: Program) -> Iterator[tuple[ProbabilisticAttention, str]]:
    """Yield the attention layers of a program with their paths.

    Raises:
        ValueError: a layer whose sites would not be named by its path.
    """
    for module in modules(model.function if isinstance(model, FunctionModule) else model):
        root = module_path(module) or ""
        for below, layer in module.named_modules():
            if not isinstance(layer, ProbabilisticAttention):
                continue
            path = ".".join(name for name in (root, below) if name)
            if module_path(layer) != path:
                raise ValueError(
                    f"the sites of the layer at {path!r} would be called {module_path(layer)!r}: a module above it is "
                    "no PyroModule. Build containers as PyroModule[nn.Sequential](...), or call "
                    "pyro.nn.module.to_pyro_module_(network) once; compile parts by module.compile(), which keeps names"
                )
            yield layer, path


def priors_at_sites(layer: ProbabilisticAttention) -> dict[str, dist.TorchDistribution]:
    """Return the layer's sites with their priors; hyperparameters are sampled at sites with full names."""
    with naming_scope(layer):
        return layer.sites()


def site_name(path: str, name: str) -> str:
    """Return the full name of a layer's site."""
    return f"{path}.{name}" if path else name
