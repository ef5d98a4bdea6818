"""A network of another library with attention layers of this one."""

from contextlib import ExitStack
from functools import partial

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.handlers import are_from_input, at_mean, local_posteriors, num_draws
from probattn.models.foreign import folding
from probattn.models.foreign.adapters import Adapter
from probattn.models.foreign.calls import call
from probattn.models.foreign.recognise import find


class Converted(PyroModule):
    """Makes a network that holds layers of this library one that ``Supervised``, ``fit`` and ``predict`` take.

    Under ``draws(S)`` the output is ``(S, batch, ...)``. Such a network knows no draws: they are folded into its batch
    from the block on that holds the first stochastic layer, and the blocks below run once; the embedding before them
    also runs on the repeated input. Where dropout draws, too (Monte-Carlo dropout), everything is folded.

    Built by :func:`replace_attention`.

    Args:
        wrapped: the network.
    """

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped
        adapters = [path for path, module in wrapped.named_modules() if isinstance(module, Adapter)]
        blocks = folding.blocks(wrapped, [*adapters, *(path for path, _ in find(wrapped))])
        self._stops = tuple(block for block in blocks if _is_stochastic(wrapped.get_submodule(block.path)))
        self._below = tuple(block for block in blocks if block not in self._stops)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The network's output ``(*draws, batch, ...)``; of a Hugging Face model the logits, or the first tensor.

        Args:
            x: inputs ``(batch, ...)``, whatever order a ``nn.TransformerEncoder`` wants them in.
            mask: ``(batch, tokens)``, True where there is a token; given to a ``nn.TransformerEncoder`` as padding, to
                a Hugging Face model as ``attention_mask``, to any other network as second argument.

        Raises:
            ValueError: a mask of more than padding, cross-attention and the like, naming the layer; an output that
                does not start with the batch.
        """
        number, at_input = num_draws(), are_from_input()
        if number is None or not (self._stops or at_input):
            return call(self.wrapped, x, mask)
        below, stops = ((), ()) if at_input else (self._below, self._stops)
        run = partial(call, self.wrapped)
        return folding.run(self.wrapped, run, x, mask, number=number, below=below, stops=stops)

    def layers(self) -> list[ProbabilisticAttention]:
        """The layers of this library, in the order of definition."""
        return [module.layer for module in self.wrapped.modules() if isinstance(module, Adapter)]

    @torch.no_grad()
    def initialise_inducing(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Sets the inducing inputs of every layer that has some to vectors of its own input on a batch.

        Layers below are at the means of their posteriors, global sites at those of their priors. To be called once the
        network is part of its model: Pyro fixes the names of sites when a module first runs.

        Args:
            x, mask: a batch of the training data, as for the network.
        """
        modes = [(module, module.training) for module in self.modules()]
        with ExitStack() as stack:
            for module, mode in modes:
                stack.callback(setattr, module, "training", mode)
            for layer in self.layers():
                stack.callback(layer.register_forward_pre_hook(_initialise).remove)
            self.eval()
            with at_mean(), local_posteriors():
                call(self.wrapped, x, mask)


def _is_stochastic(block: nn.Module) -> bool:
    """Whether a part of a network holds a stochastic layer."""
    return any(isinstance(module, Adapter) and module.layer.is_stochastic() for module in block.modules())


def _initialise(layer: ProbabilisticAttention, args: tuple[Tensor, Tensor | None]) -> None:
    """Before a layer runs: its real tokens as its inducing inputs."""
    x, mask = args
    layer.initialise(x if mask is None else x[mask])
