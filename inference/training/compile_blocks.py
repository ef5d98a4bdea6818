"""Compilation of the blocks of a network with :func:`torch.compile`."""

from torch import nn

from probattn.attention.base import ProbabilisticAttention
from probattn.sites import SiteModule
from probattn.torch_compat import leave_uncompiled

USING_HANDLERS = ("sample", "sample_local", "observe", "_add_factor", "is_scored")
"""Methods of :class:`~probattn.sites.SiteModule` that send messages to Pyro's handlers."""


def compile_blocks(network: nn.Module) -> None:
    """Compile each module that has an attention layer as a child, in place; names of sites and weights stay the same.

    Sample statements run in Python, and what is between them (the pure functions of the layers, and blocks without
    sites) is compiled, once for all blocks of a kind. Samples drawn inside have the same distribution as without
    compilation, but not the same values.

    Args:
        network: network or model.
    """
    leave_uncompiled(SiteModule, *USING_HANDLERS)
    for module in list(network.modules()):
        if any(isinstance(child, ProbabilisticAttention) for child in module.children()):
            module.compile()
