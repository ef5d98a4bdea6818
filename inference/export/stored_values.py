"""Stored values of a network's latent sites, with which it runs without Pyro, in any number of
threads at once."""

from functools import partial
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.draws import expanded, mean_of
from probattn.pyro_internals import sampled_attributes
from probattn.sites import SiteModule


def store(network: nn.Module, values: dict[str, Tensor], num_samples: int | None) -> None:
    """Replace the sample statements of a network's modules, in place, by stored values of their
    global sites.

    Args:
        network: the network.
        values: by name of the site; they become buffers of its modules.
        num_samples: S, the number of draws of a local site in each call; None puts it at the mean
            of its posterior.

    Raises:
        ValueError: a site that belongs to none of them, such as a ``PyroSample`` or a statement of
            a user's own.
    """
    remaining = dict(values)
    for module in network.modules():
        if isinstance(module, SiteModule):
            for site in list(remaining):
                owner, _, name = site.rpartition(".")
                if owner == module.name:
                    value = remaining.pop(site).detach().clone()
                    module.register_buffer(f"value_{name}", value)
            statements = {
                "sample": partial(_stored, module),
                "sample_local": partial(_draw, num_samples),
            }
            vars(module).update(statements, is_scored=_is_not_scored)
    if sites := [*remaining, *sampled_attributes(network)]:
        raise ValueError(f"{', '.join(sites)} belongs to no layer of this library")


def _stored(module: SiteModule, name: str, prior: dist.TorchDistribution) -> Tensor:
    """Return the value of a global site.

    Raises:
        AttributeError: the guide has drawn none, or one for each example.
    """
    return getattr(module, f"value_{name}")


def _draw(
    num_samples: int | None,
    name: str,
    prior: dist.TorchDistribution,
    posterior: dist.TorchDistribution,
    **options: Any,
) -> Tensor:
    """Return S draws of a local site from its posterior, or its mean."""
    if num_samples is None:
        return mean_of(posterior, torch.broadcast_shapes(prior.batch_shape, posterior.batch_shape))
    if posterior.batch_shape != prior.batch_shape:
        posterior = posterior.expand(prior.batch_shape)
    return expanded(posterior, -2, num_samples).rsample()


def _is_not_scored() -> bool:
    return False
