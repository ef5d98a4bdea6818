"""A network of another library with attention layers of this one."""

from contextlib import ExitStack
from functools import partial

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.handlers import at_mean, has_stochastic_input, local_posteriors, num_folded, num_samples
from probattn.models.blocks import evaluating
from probattn.models.third_party import folding
from probattn.models.third_party.adapters import Adapter
from probattn.models.third_party.calls import call
from probattn.models.third_party.recognise import find
from probattn.models.third_party.refusals import watched


class Converted(PyroModule):
    """Makes a network that holds layers of this library one that ``Supervised``, ``fit`` and ``predict`` take.

    Under ``draws(S)`` the output is ``(S, batch, ...)``. Such a network knows no draws: they are folded into its batch
    from the first stochastic layer on, and the blocks below run once; the embedding before them also runs on the
    repeated input. In training mode, and in Monte-Carlo dropout, dropout draws as well, and everything is folded.

    Built by :func:`replace_attention`.

    Args:
        wrapped: the network.
    """

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped
        adapters = {path: module for path, module in wrapped.named_modules() if isinstance(module, Adapter)}
        self._blocks = folding.blocks(wrapped, [*adapters, *(path for path, _ in find(wrapped))])
        self._stops = tuple(path for path, adapter in adapters.items() if adapter.layer.is_stochastic())

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The network's output ``(*draws, batch, ...)``; of a Hugging Face model the logits, or the first tensor.

        Args:
            x: inputs ``(batch, ...)``, whatever order a ``nn.TransformerEncoder`` wants them in.
            mask: ``(batch, tokens)``, True where there is a token; given to a ``nn.TransformerEncoder`` as padding, to
                a Hugging Face model as ``attention_mask``, to any other network as second argument.

        Raises:
            ValueError: a mask of more than padding, cross-attention and the like, naming the layer; in training mode,
                batch norm behind a stochastic layer; gradient checkpointing; an output that does not start with the
                batch.
        """
        number, at_input, run = num_samples(), has_stochastic_input(), partial(call, self.wrapped)
        with watched(self.wrapped):
            if number is None or num_folded() is not None or not (self._stops or at_input):
                return run(x, mask)
            # An exported program folds at the input, too: tracing does not survive the stop at the first draw.
            once = () if at_input or self.training or torch.compiler.is_exporting() else self._blocks
            return folding.run(self.wrapped, run, x, mask, number=number, once=once, stops=self._stops)

    def layers(self) -> list[ProbabilisticAttention]:
        """The layers of this library, in the order of definition."""
        return [module.layer for module in self.wrapped.modules() if isinstance(module, Adapter)]

    @torch.no_grad()
    def initialise_inducing(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Sets the inducing inputs of every layer that has some to vectors of its own input on a batch.

        Layers below are at the means of their posteriors, global sites at those of their priors.

        Args:
            x, mask: a batch of the training data, as for the network.
        """
        with ExitStack() as stack, evaluating(self), at_mean(), local_posteriors():
            for layer in self.layers():
                stack.callback(layer.register_forward_pre_hook(_initialise).remove)
            call(self.wrapped, x, mask)


def _initialise(layer: ProbabilisticAttention, args: tuple[Tensor, Tensor | None]) -> None:
    """Before a layer runs: its real tokens as its inducing inputs."""
    x, mask = args
    layer.initialise(x if mask is None else x[mask])
