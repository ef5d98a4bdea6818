"""Network of another library with attention layers of this one."""

from contextlib import ExitStack
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.draws import at_mean, has_stochastic_input, num_folded, num_samples
from probattn.evaluation_mode import evaluation_mode
from probattn.models.third_party.adapters import Adapter
from probattn.models.third_party.call_network import call_network
from probattn.models.third_party.draws_in_batch import find_blocks, run_with_draws
from probattn.models.third_party.find_attention import find_attention
from probattn.models.third_party.incompatible_modules import reject_incompatible_modules
from probattn.sites import name_layers


class ConvertedNetwork(nn.Module):
    """Wrapper with which ``Supervised``, ``fit`` and ``predict`` take a converted network.

    Under ``draws(S)`` the output is ``(S, batch, ...)``. The network itself has no dimension for draws: they are folded
    into its batch from the first stochastic layer on, so the blocks below run once; modules before the blocks, such as
    an embedding, also run on the repeated input. In training mode and in Monte Carlo dropout, where dropout draws as
    well, the whole network runs on the repeated input.

    It starts in the network's mode, training or evaluation. Built by :func:`replace_attention`.

    Args:
        wrapped: the network.
    """

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped, self.training = wrapped, wrapped.training
        name_layers(self)
        self._frozen_statistics: tuple[nn.Module, ...] = ()
        adapters = {path: module for path, module in wrapped.named_modules() if isinstance(module, Adapter)}
        self._blocks = find_blocks(wrapped, [*adapters, *(path for path, _ in find_attention(wrapped))])
        self._stochastic = tuple(path for path, adapter in adapters.items() if adapter.layer.is_stochastic())

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the network's output ``(*draws, batch, ...)``; of a Hugging Face model the logits or first tensor.

        Args:
            x: inputs ``(batch, ...)``, batch first also for an ``nn.TransformerEncoder`` with ``batch_first=False``.
            mask: ``(batch, tokens)``, True at real tokens; passed to an ``nn.TransformerEncoder`` as padding mask, to
                a Hugging Face model as ``attention_mask``, to any other network as second argument.

        Raises:
            ValueError: a mask of anything but padding, cross-attention and the like, naming the layer; in training
                mode, batch norm after a stochastic layer; gradient checkpointing; an output that is not batch first.
        """
        number, at_input, call = num_samples(), has_stochastic_input(), partial(call_network, self.wrapped)
        with reject_incompatible_modules(self.wrapped):  # which changes modules during the call
            if number is None or num_folded() is not None or not (self._stochastic or at_input):
                return call(x, mask)
            # torch.export cannot trace the stop at the first stochastic layer, so it folds at the input, too.
            fold_at_input = at_input or self.training or torch.compiler.is_exporting()
            run_once = () if fold_at_input else self._blocks
            return run_with_draws(
                self.wrapped, call, x, mask, number=number, run_once=run_once, stochastic=self._stochastic
            )

    def layers(self) -> list[ProbabilisticAttention]:
        """Return the layers of this library in order of definition."""
        return [module.layer for module in self.wrapped.modules() if isinstance(module, Adapter)]

    def freeze_rest(self) -> None:
        """Freeze all but the layers of this library: their parameters, and the running statistics of batch norms."""
        own = [module for layer in self.layers() for module in layer.modules()]
        trained = {parameter for module in own for parameter in module.parameters()}
        for parameter in self.parameters():
            parameter.requires_grad_(parameter.requires_grad and parameter in trained)
        rest = [module for module in self.modules() if all(module is not each for each in own)]
        self._frozen_statistics = tuple(each for each in rest if getattr(each, "running_mean", None) is not None)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; modules with frozen statistics stay in evaluation mode."""
        super().train(mode)
        for module in self._frozen_statistics:
            module.eval()
        return self

    @torch.no_grad()
    def initialise_inducing(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Initialise the inducing inputs of each layer from its own input on a batch.

        Local latent sites of lower layers are at their posterior means, global ones at their prior means.

        Args:
            x, mask: a batch of the training data, as for :meth:`forward`.
        """
        with ExitStack() as stack, evaluation_mode(self), at_mean():
            for layer in self.layers():
                stack.callback(layer.register_forward_pre_hook(_initialise).remove)
            call_network(self.wrapped, x, mask)


def _initialise(layer: ProbabilisticAttention, args: tuple[Tensor, Tensor | None]) -> None:
    """Forward pre-hook that initialises a layer's inducing inputs from its real tokens."""
    x, mask = args
    layer.initialise(x if mask is None else x[mask])
