"""Network of another library with attention layers of this one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

import torch
from torch import Tensor, nn

from probattn import ProbabilisticAttention, name_layers
from probattn.draws import at_mean, num_folded, num_samples
from probattn.evaluation_mode import evaluation_mode
from probattn.models.third_party.adapters import Adapter
from probattn.models.third_party.folded_draws import call_network, run_with_draws

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class ConvertedNetwork(nn.Module):
    """Wrapper with which ``Supervised``, ``fit`` and ``predict`` take a converted network.

    Under ``draws(S)`` the output is ``(S, batch, ...)``. The network itself has no dimension for
    draws: they are folded into its batch from the first stochastic layer on, so the modules below
    run once. In training mode, where dropout draws as well, the whole network runs on the repeated
    input.

    It starts in the network's mode, training or evaluation. Built by :func:`replace_attention`.

    Args:
        wrapped: the network.
    """

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.training = wrapped.training
        self.is_frozen = False
        name_layers(self)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the network's output ``(*draws, batch, ...)``; see :func:`call_network`.

        Args:
            x: inputs ``(batch, ...)``, batch first also for an ``nn.TransformerEncoder`` with
                ``batch_first=False``.
            mask: ``(batch, tokens)``, True at real tokens.

        Raises:
            ValueError: a mask of anything but padding, cross-attention and the like, naming the
                layer; in training mode, batch norm after a stochastic layer; gradient
                checkpointing.
            RuntimeError: an output that is not batch first.
            TypeError: several outputs, of which none is called logits.
        """
        stochastic: set[nn.Module] = {
            module
            for module in self.wrapped.modules()
            if isinstance(module, Adapter) and module.layer.is_stochastic()
        }
        number = num_samples()
        with _no_mixing_of_draws(self.wrapped, stochastic):
            if number is None or num_folded() is not None or not stochastic:
                return call_network(self.wrapped, x, mask)
            # torch.export cannot trace the stop at the first stochastic layer, so it folds at the
            # input, too.
            if self.training or torch.compiler.is_exporting():
                stochastic = set()
            return run_with_draws(self.wrapped, x, mask, number, stochastic)

    def layers(self) -> list[ProbabilisticAttention]:
        """Return the layers of this library in order of definition."""
        return [module.layer for module in self.wrapped.modules() if isinstance(module, Adapter)]

    def freeze_rest(self) -> None:
        """Freeze all but the layers of this library: their parameters, and the running statistics
        of batch norms."""
        trained = {parameter for layer in self.layers() for parameter in layer.parameters()}
        for parameter in self.parameters():
            parameter.requires_grad_(parameter.requires_grad and parameter in trained)
        self.is_frozen = True
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; frozen modules with running statistics stay in
        evaluation mode."""
        super().train(mode)
        for module in self.modules() if self.is_frozen else ():
            # No layer of this library has any.
            if getattr(module, "running_mean", None) is not None:
                module.eval()
        return self

    @torch.no_grad()
    def initialise_inducing(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Initialise the inducing inputs of each layer from its own input on a batch, once.

        Local latent sites of lower layers are at their posterior means, global ones at their prior
        means.

        Args:
            x, mask: a batch of the training data, as for :meth:`forward`.
        """
        with ExitStack() as stack, evaluation_mode(self), at_mean():
            for layer in self.layers():
                stack.callback(layer.register_forward_pre_hook(_initialise).remove)
            call_network(self.wrapped, x, mask)


@contextmanager
def _no_mixing_of_draws(network: nn.Module, stochastic: set[nn.Module]) -> Iterator[None]:
    """Context manager that raises where a network's modules would silently be wrong beside
    stochastic layers.

    Raises:
        ValueError: batch norm with batch statistics after a stochastic layer, whose draws it would
            mix; gradient checkpointing, whose recomputation runs outside the handlers and would
            draw again.
    """
    reached: list[bool] = []

    def check(norm: nn.Module, args: tuple) -> None:
        if reached:
            raise ValueError(
                f"{type(norm).__name__} runs after a stochastic layer and mixes its draws: use "
                "layer norm"
            )

    with ExitStack() as stack:
        for module in network.modules() if stochastic else ():
            hugging_face = getattr(module, "gradient_checkpointing", False)
            timm = getattr(module, "grad_checkpointing", False)
            if torch.is_grad_enabled() and (timm or (hugging_face and module.training)):
                raise ValueError(
                    f"switch off the gradient checkpointing of {type(module).__name__}: its "
                    "backward pass draws again"
                )
            if module in stochastic:
                stack.callback(module.register_forward_hook(lambda *_: reached.append(True)).remove)
            elif isinstance(module, BATCH_NORMS) and (
                module.training or module.running_mean is None
            ):
                stack.callback(module.register_forward_pre_hook(check).remove)
        yield


def _initialise(layer: ProbabilisticAttention, args: tuple[Tensor, Tensor | None]) -> None:
    """Forward pre-hook that initialises a layer's inducing inputs from its real tokens."""
    x, mask = args
    layer.place(x[... if mask is None else mask])
