"""Stored values of a network's latent sites, with which it runs without Pyro, in any number of threads at once."""

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from probattn.draws import expanded, mean_of
from probattn.pyro_internals import sampled_attributes
from probattn.sites import SiteModule


class StoredValues:
    """Statements of modules whose global sites have their values in buffers (see :func:`store`).

    Args:
        num_samples: S, the number of draws of a local site; None puts it at the mean of its posterior.
    """

    def __init__(self, num_samples: int | None) -> None:
        self.num_samples = num_samples

    def sample(self, module: SiteModule, name: str, prior: dist.TorchDistribution) -> Tensor:
        """Return the value of a global site.

        Raises:
            ValueError: the guide has drawn none.
        """
        value = getattr(module, f"value_{name}", None)
        if value is None:
            raise ValueError(f"the guide draws no site {module.site(name)} of the model, or draws it for each example")
        return value

    def sample_local(
        self,
        module: SiteModule,
        name: str,
        prior: dist.TorchDistribution,
        posterior: dist.TorchDistribution,
        **infer: Any,
    ) -> Tensor:
        """Return S draws of a local site from its posterior, or its mean."""
        if self.num_samples is None:
            return mean_of(posterior, torch.broadcast_shapes(prior.batch_shape, posterior.batch_shape))
        same = posterior.batch_shape == prior.batch_shape
        return expanded(posterior if same else posterior.expand(prior.batch_shape), -2, self.num_samples).rsample()

    def observe(self, *args: Any, **infer: Any) -> None:
        """Do nothing: a prediction needs no densities."""

    def is_scored(self) -> bool:
        """Return False."""
        return False


def store(network: torch.nn.Module, values: dict[str, Tensor], num_samples: int | None) -> None:
    """Give the values of global sites by name to the modules of a network, in place.

    Raises:
        ValueError: a site that belongs to none of them, such as a ``PyroSample`` or a statement of a user's own.
    """
    left, statements = dict(values), StoredValues(num_samples)
    for module in network.modules():
        if isinstance(module, SiteModule):
            module.statements = statements
            for site in list(left):
                owner, _, name = site.rpartition(".")
                if owner == module.name:
                    module.register_buffer(f"value_{name}", left.pop(site).detach().clone())
    if left := [*left, *sampled_attributes(network)]:
        raise ValueError(
            f"site {', '.join(left)} belongs to no layer of this library: only layers can have stored values; predict "
            "with the model and its guide instead"
        )
