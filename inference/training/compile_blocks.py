"""Compiling what a network is made of, as far as it can be compiled."""

from torch import nn

from probattn.attention.base import ProbabilisticAttention


def compile_blocks(network: nn.Module) -> None:
    """Compiles the modules that hold an attention layer, in place: names of sites and weights stay as they are.

    Pyro's sample statements break a graph; what lies between them, the pure functions of the layers and whole blocks
    without sites, is compiled. Draws inside are of the same law as without, not the same numbers.

    Args:
        network: a network or a model.
    """
    for module in list(network.modules()):
        if any(isinstance(child, ProbabilisticAttention) for child in module.children()):
            module.compile()
