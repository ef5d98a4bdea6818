"""Network of another library with attention layers of this one."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self

import torch
from lightning_utilities import apply_to_collection
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.draws import at_mean, has_stochastic_input, num_folded, num_samples
from probattn.evaluation_mode import evaluation_mode
from probattn.models.third_party.adapters import Adapter
from probattn.models.third_party.draws_in_batch import run_with_draws
from probattn.sites import name_layers

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class ConvertedNetwork(nn.Module):
    """Wrapper with which ``Supervised``, ``fit`` and ``predict`` take a converted network.

    Under ``draws(S)`` the output is ``(S, batch, ...)``. The network itself has no dimension for draws: they are folded
    into its batch from the first stochastic layer on, so the modules below run once. In training mode and in Monte
    Carlo dropout, where dropout draws as well, the whole network runs on the repeated input.

    It starts in the network's mode, training or evaluation. Built by :func:`replace_attention`.

    Args:
        wrapped: the network.
    """

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped, self.training, self.is_frozen = wrapped, wrapped.training, False
        name_layers(self)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the network's output ``(*draws, batch, ...)``; see :func:`call_network`.

        Args:
            x: inputs ``(batch, ...)``, batch first also for an ``nn.TransformerEncoder`` with ``batch_first=False``.
            mask: ``(batch, tokens)``, True at real tokens.

        Raises:
            ValueError: a mask of anything but padding, cross-attention and the like, naming the layer; in training
                mode, batch norm after a stochastic layer; gradient checkpointing; an output that is not batch first.
            TypeError: several outputs, of which none is called logits.
        """
        adapters = [module for module in self.wrapped.modules() if isinstance(module, Adapter)]
        stochastic = {adapter for adapter in adapters if adapter.layer.is_stochastic()}
        number, at_input, call = num_samples(), has_stochastic_input(), partial(call_network, self.wrapped)
        with _no_mixing_of_draws(self.wrapped, stochastic):
            if number is None or num_folded() is not None or not (stochastic or at_input):
                return call(x, mask)
            # torch.export cannot trace the stop at the first stochastic layer, so it folds at the input, too.
            if at_input or self.training or torch.compiler.is_exporting():
                stochastic = set()
            return run_with_draws(self.wrapped, call, x, mask, number=number, stochastic=stochastic)

    def layers(self) -> list[ProbabilisticAttention]:
        """Return the layers of this library in order of definition."""
        return [module.layer for module in self.wrapped.modules() if isinstance(module, Adapter)]

    def freeze_rest(self) -> None:
        """Freeze all but the layers of this library: their parameters, and the running statistics of batch norms."""
        trained = {parameter for layer in self.layers() for parameter in layer.parameters()}
        for parameter in self.parameters():
            parameter.requires_grad_(parameter.requires_grad and parameter in trained)
        self.is_frozen = True
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; frozen modules with running statistics stay in evaluation mode."""
        super().train(mode)
        for module in self.modules() if self.is_frozen else ():
            if getattr(module, "running_mean", None) is not None:  # no layer of this library has any
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


def call_network(network: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output of a network, batch first.

    An ``nn.TransformerEncoder`` (or one of its layers) gets x in the layout of its ``batch_first`` and the mask as
    ``src_key_padding_mask``. A Hugging Face model gets x as its main input and the mask as ``attention_mask``. Any
    other network gets ``(x)`` or ``(x, mask)``.

    Of several outputs the one called ``logits`` is returned, or else ``last_hidden_state``, or else the only tensor.

    Args:
        network: the network.
        x: ``(batch, ...)``.
        mask: ``(batch, tokens)``, True at real tokens, or None.

    Raises:
        TypeError: several tensors without such a name, or none.
    """
    if isinstance(network, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
        padding = None if mask is None else ~mask
        if next(part.batch_first for part in network.modules() if hasattr(part, "batch_first")):
            return network(x, src_key_padding_mask=padding)
        return network(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)
    name = getattr(network, "main_input_name", None)
    if isinstance(name, str) and hasattr(network, "config"):
        return _logits(network(**{name: x}, **({} if mask is None else {"attention_mask": mask.long()})))
    return _logits(network(x) if mask is None else network(x, mask))


def _logits(output: Any) -> Tensor:
    """Return the logits or last hidden state among several outputs, or the only tensor."""
    for name in ("logits", "last_hidden_state"):
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    tensors: list[Tensor] = []
    apply_to_collection(output, Tensor, tensors.append)
    if len(tensors) != 1:
        raise TypeError(
            f"the network returned a {type(output).__name__} with {len(tensors)} tensors and none called logits: wrap "
            "it in a module that returns the logits"
        )
    return tensors[0]


@contextmanager
def _no_mixing_of_draws(network: nn.Module, stochastic: Collection[nn.Module]) -> Iterator[None]:
    """Context manager that raises where a network's modules would silently be wrong beside stochastic layers.

    Raises:
        ValueError: batch norm with batch statistics after a stochastic layer, whose draws it would mix; gradient
            checkpointing, whose recomputation runs outside the handlers and would draw again.
    """
    reached: list[nn.Module] = []

    def check(norm: nn.Module, args: tuple) -> None:
        if reached:
            raise ValueError(
                f"{type(norm).__name__} runs after a stochastic layer and would mix its draws: replace it by layer or "
                "group norm, or put it into evaluation mode"
            )

    with ExitStack() as stack:
        for module in network.modules():
            hugging_face, timm = (getattr(module, f"grad{end}_checkpointing", False) for end in ("ient", ""))
            if stochastic and torch.is_grad_enabled() and (timm or (hugging_face and module.training)):
                raise ValueError(
                    f"{type(module).__name__} uses gradient checkpointing, which draws again in the backward pass: "
                    "switch it off, gradient_checkpointing_disable() or set_grad_checkpointing(False)"
                )
            if module in stochastic:
                stack.callback(module.register_forward_hook(lambda layer, *_: reached.append(layer)).remove)
            elif isinstance(module, BATCH_NORMS) and (module.training or module.running_mean is None):
                stack.callback(module.register_forward_pre_hook(check).remove)
        yield


def _initialise(layer: ProbabilisticAttention, args: tuple[Tensor, Tensor | None]) -> None:
    """Forward pre-hook that initialises a layer's inducing inputs from its real tokens."""
    x, mask = args
    layer.initialise(x if mask is None else x[mask])
