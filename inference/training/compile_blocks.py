"""Compilation of the blocks of a network with :func:`torch.compile`."""

from torch import nn

from probattn.attention.base import ProbabilisticAttention


def compile_blocks(network: nn.Module) -> None:
    """Compile each module that has an attention layer as a child, in place; names of sites and weights stay the same.

    Pyro's sample statements break the graph. The code between them (the pure functions of the layers, and blocks
    without sites) is compiled. Samples drawn inside have the same distribution as without compilation, but not the
    same values.

    Args:
        network: network or model.
    """
    for module in list(network.modules()):
        if any(isinstance(child, ProbabilisticAttention) for child in module.children()):
            module.compile()
