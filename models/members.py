"""Members of one network that a latent variable chooses: its depths, and groups of its heads."""

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex
from torch import Tensor, nn

from probattn import local_site
from probattn.models.blocks import Transformer
from probattn.sites import SiteModule


class Members(SiteModule):
    """Network with the outputs of one of its K members: y | x, k ~ p(y | outputs of member k).

    Site ``member``, latent, local: k of each example. ``TraceEnum_ELBO`` (``elbo="enum"``) sums it
    out, with all members in one forward pass. Parameter ``logits``: of p(k), which is learned.

    Args:
        network: returns the outputs of all members, ``(K, *draws, batch, outputs)``.
        members: K.
    """

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.network = network
        self.logits = nn.Parameter(torch.zeros(members))

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        """Return the outputs of the members that are sampled, ``(*draws, batch, outputs)``."""
        outputs = self.network(x, *mask).movedim(0, -2)
        prior = dist.Categorical(logits=self.logits).expand(x.shape[:1])
        infer = {"enumerate": "parallel"} | local_site()
        member = pyro.sample(self.site("member"), prior, infer=infer)
        return Vindex(outputs)[..., member, :]


class Depths(nn.Module):
    """All depths of a network as members: its norm and head after each block (Antorán, Allingham &
    Hernández-Lobato, 2020).

    Args:
        network: one of this library.
    """

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        """Return the outputs after each block, ``(depth, *draws, batch, outputs)``."""
        x, outputs = self.network.tokens(x), []
        for block in self.network.blocks:
            x = block(x, *mask)
            outputs.append(self.network.outputs_of(x, *mask))
        return torch.stack(torch.broadcast_tensors(*outputs))


class Parts(nn.Module):
    """A linear map of each of K parts of its input alone, ``(..., n)`` → ``(K, ..., outputs)``.

    Args:
        linear: the map, of whose weights each part has its own columns.
        groups: K.
    """

    def __init__(self, linear: nn.Linear, groups: int) -> None:
        super().__init__()
        self.linear = linear
        unit = torch.eye(groups).to(linear.weight)
        self.mask = nn.Buffer(unit.repeat_interleave(linear.in_features // groups, dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all parts."""
        return torch.stack([self.linear(x * part) for part in self.mask])


def group_heads(network: Transformer, groups: int) -> Transformer:
    """Make members of K groups of the heads of the last block, in place: the network then returns
    the outputs of each group alone.

    Each has its own columns of the block's output map, so this may follow training; what follows
    these heads is computed K times (after Hydra Ensembles, arXiv 2510.18358, which have groups in
    every block).

    Args:
        network: one of this library.
        groups: K, which divides the number of heads.

    Raises:
        ValueError: another number of groups.
    """
    attention: Any = network.blocks[-1].attention
    if groups < 1 or attention.heads % groups:
        raise ValueError(f"groups must divide the {attention.heads} heads, got {groups}")
    attention.out = Parts(attention.out, groups)
    return network
