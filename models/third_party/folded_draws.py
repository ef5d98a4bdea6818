"""Calls of a network of another library: as it is, and with draws folded into its batch."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from lightning_utilities import apply_to_collection
from torch import Tensor, nn

from probattn.draws import draws_in_batch
from probattn.threads import one_thread_at_a_time


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


def run_with_draws(
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
