"""A regression by two stochastic layers, and data for it."""

import pyro
import pyro.distributions as dist
import torch
from torch import nn

from probattn import KEPSVGPAttention, local_site, local_sites, name_layers


class Regression(nn.Module):
    """Two stochastic layers and a Gaussian likelihood over the mean token."""

    num_data = 40

    def __init__(self, prior="normal", learn_scale=True, **options):
        super().__init__()
        make = KEPSVGPAttention.partial(
            rank=2, prior=prior, learn_scale=learn_scale, scale=0.8, **options
        )
        self.layers = nn.Sequential(make(8, 2), make(8, 2))
        name_layers(self)

    def forward(self, x, y=None):
        with local_sites(batch=len(x), num_data=self.num_data):
            mean = self.layers(x).mean((-2, -1))
            return pyro.sample("y", dist.Normal(mean, 0.5), obs=y, infer=local_site())


def examples():
    """Return tokens ``(10, 5, 8)`` and labels ``(10,)``."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 5, 8, generator=generator), torch.randn(10, generator=generator)
