"""Network of another library with attention layers of this one."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Self

import torch
from lightning_utilities import apply_to_collection
from torch import Tensor, nn

from probattn import ProbabilisticAttention, name_layers
from probattn.draws import at_mean, draws_in_batch, num_folded, num_samples
from probattn.evaluation_mode import evaluation_mode
from probattn.models.third_party.adapters import Adapter
from probattn.threads import one_thread_at_a_time

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
            return _run_with_draws(self.wrapped, x, mask, number, stochastic)

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


def call_network(network: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output of a network, batch first.

    An ``nn.TransformerEncoder`` (or one of its layers) gets x in the layout of its ``batch_first``
    and the mask as ``src_key_padding_mask``. A Hugging Face model gets x as its main input and the
    mask as ``attention_mask``. Any other network gets ``(x)`` or ``(x, mask)``.

    Of several outputs the one called ``logits`` is returned, or else ``last_hidden_state``, or else
    the only tensor.

    Args:
        network: the network.
        x: ``(batch, ...)``.
        mask: ``(batch, tokens)``, True at real tokens, or None.

    Raises:
        TypeError: several tensors without such a name, or none.
    """
    if isinstance(network, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
        padding = None if mask is None else ~mask
        if next(
            module.batch_first for module in network.modules() if hasattr(module, "batch_first")
        ):
            return network(x, src_key_padding_mask=padding)
        return network(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)
    if name := getattr(network, "main_input_name", None):
        output = network(**{name: x}, **({} if mask is None else {"attention_mask": mask.long()}))
    else:
        output = network(x) if mask is None else network(x, mask)
    for name in ("logits", "last_hidden_state"):
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if value is not None:
            return value
    tensors: list[Tensor] = []
    apply_to_collection(output, Tensor, tensors.append)
    if len(tensors) != 1:
        actual = f"{type(output).__name__} with {len(tensors)} tensors and none called logits"
        raise TypeError(
            f"the network returned a {actual}: wrap it in a module that returns the logits"
        )
    return tensors[0]


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


def _run_with_draws(
    network: nn.Module, x: Tensor, mask: Tensor | None, number: int, stochastic: set
) -> Tensor:
    """Return the outputs of S draws ``(S, batch, ...)``.

    The network runs on the plain batch up to the first stochastic layer, and then completely on the
    batch repeated S times, ``(S · batch, ...)``, where modules that have already run return their
    stored output, repeated along the dimension in which their first input has grown. So masks and
    other values that the network passes on have the expected size. The code between these modules
    runs twice.

    Args:
        network: the network.
        x: inputs ``(batch, ...)``.
        mask: ``(batch, tokens)``, or None.
        number: S.
        stochastic: the stochastic layers; without any, the whole network runs on the repeated
            batch.

    Raises:
        RuntimeError: an output that is not batch first.
    """
    batch = x.shape[0]  # len() would fix it in an exported program
    stored: dict[nn.Module, deque] = defaultdict(deque)

    def repeat(value: Tensor, dim: int = 0) -> Tensor:
        if value.shape[dim] != batch:
            raise ValueError(
                f"dimension {dim} must be the batch of {batch}, got {tuple(value.shape)}"
            )
        return torch.cat([value] * number, dim)

    def stop(*args: Any, **kwargs: Any) -> None:
        raise _FirstStochasticLayer

    def run_once(module: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        """Run a module and store a copy of its output, which the network may change in place."""
        output = forward(*args, **kwargs)
        stored[module].append(
            (_shape(args, kwargs), apply_to_collection(output, Tensor, Tensor.clone))
        )
        return output

    def replay(module: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        """Return the stored output repeated S times; run the module where that is not what it would
        return."""
        if stored[module]:
            shape, output = stored[module].popleft()
            sizes = enumerate(zip(shape, _shape(args, kwargs), strict=False))
            grown = [dim for dim, pair in sizes if pair == (batch, number * batch)]
            with suppress(ValueError, IndexError):
                return apply_to_collection(output, Tensor, repeat, grown[0])
        return forward(*args, **kwargs)

    if stochastic and number > 1:
        parts = [module for module in network.modules() if stochastic.isdisjoint(module.modules())]
        with (
            suppress(_FirstStochasticLayer),
            draws_in_batch(1),
            _replaced_forwards(stochastic, stop),
            _replaced_forwards(parts, run_once),
        ):
            return call_network(network, x, mask)
    with draws_in_batch(number), _replaced_forwards(list(stored), replay):
        output = call_network(network, repeat(x), None if mask is None else repeat(mask))
    return output.unflatten(0, (number, batch))


class _FirstStochasticLayer(Exception):  # noqa: N818
    """Signal that the first stochastic layer is reached."""


def _shape(args: tuple, kwargs: dict[str, Any]) -> torch.Size:
    """Return the shape of the first tensor among the arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.shape
    return torch.Size()


@contextmanager
def _replaced_forwards(modules: Collection[nn.Module], replacement: Callable) -> Iterator[None]:
    """Let modules call ``replacement(module, forward, ...)`` instead of their method ``forward``,
    for one thread; what a replacement calls runs as it is.

    PyTorch's hooks cannot skip a module. An attribute of an instance comes before the method of its
    class.
    """
    under_way: list[nn.Module] = []

    def call(module: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        if under_way:
            return forward(*args, **kwargs)
        under_way.append(module)
        try:
            return replacement(module, forward, *args, **kwargs)
        finally:
            under_way.clear()

    with one_thread_at_a_time, ExitStack() as stack:
        for module in modules:
            attributes = vars(module)
            forward = module.forward
            before = {"forward": forward} if "forward" in attributes else {}
            stack.callback(attributes.update, before)
            stack.callback(attributes.pop, "forward")
            attributes["forward"] = partial(call, module, forward)
        yield


def _initialise(layer: ProbabilisticAttention, args: tuple[Tensor, Tensor | None]) -> None:
    """Forward pre-hook that initialises a layer's inducing inputs from its real tokens."""
    x, mask = args
    layer.place(x[... if mask is None else mask])
