"""Execution of a network with its draws folded into the batch dimension, from its first stochastic layer on."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from probattn.draws import draws_in_batch

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def find_blocks(network: nn.Module, attention: Collection[str]) -> tuple[str, ...]:
    """Return the path of the block of each attention layer, without repetition.

    A block is the child, on the path to the layer, of the nearest container in which several children hold attention;
    without such a container it is the layer itself.

    Args:
        network: the network.
        attention: paths of all its attention layers.
    """
    return tuple(dict.fromkeys(_find_block(network, path, attention) for path in attention))


def run_with_draws(
    network: nn.Module,
    call: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    mask: Tensor | None,
    *,
    number: int,
    run_once: Collection[str],
    stochastic: Collection[str],
) -> Tensor:
    """Return the outputs of S draws ``(S, batch, ...)``.

    The network runs on the plain batch up to the first stochastic layer, and then completely on the batch repeated S
    times, ``(S · batch, ...)``, where blocks that have already run return their stored output, repeated along the
    dimension in which their input has grown. So masks and other values that the network passes to its blocks have the
    expected size. Modules outside the blocks, such as an embedding, run twice.

    Args:
        network: the network.
        call: runs it on inputs and mask.
        x: inputs ``(batch, ...)``.
        mask: ``(batch, tokens)``, or None.
        number: S.
        run_once: paths of the blocks that run once if they precede the first stochastic layer; if empty, draws are
            folded at the input.
        stochastic: paths of the stochastic layers.

    Raises:
        ValueError: an output that is not batch first.
    """
    stored = {network.get_submodule(path): _StoredOutputs() for path in run_once if number > 1}
    if stored:
        stops = {network.get_submodule(path): _stop for path in stochastic}
        try:
            forwards = {module: outputs.run_and_store for module, outputs in stored.items()} | stops
            with draws_in_batch(1), _replaced_forwards(forwards):
                return call(x, mask)
        except _FirstStochasticLayer:
            pass
    with (
        draws_in_batch(number),
        _replaced_forwards({module: partial(outputs.replay, number) for module, outputs in stored.items()}),
    ):
        output = call(_repeat(x, number, 0), _repeat(mask, number, 0))
    batch = x.shape[0]  # len() would fix it in an exported program
    if output.shape[0] != number * batch:
        raise ValueError(
            f"the network returned {tuple(output.shape)} for a batch of {number} draws times {batch} examples: its "
            "output must start with the batch"
        )
    return output.unflatten(0, (number, batch))


class _FirstStochasticLayer(Exception):  # noqa: N818
    """Signal that the first stochastic layer is reached."""


def _stop(forward: Callable, *args: Any, **kwargs: Any) -> None:
    raise _FirstStochasticLayer


class _StoredOutputs:
    """Outputs of a block with the shapes of its inputs, call by call."""

    def __init__(self) -> None:
        self.calls: deque[tuple[list[torch.Size], Any]] = deque()

    def run_and_store(self, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        """Run the block and store its output."""
        output = forward(*args, **kwargs)
        self.calls.append((_shapes(args, kwargs), output))
        return output

    def replay(self, number: int, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        """Return the stored output repeated S times; run the block if none is left or no input grew S times."""
        if self.calls:
            shapes, output = self.calls.popleft()
            for before, now in zip(shapes, _shapes(args, kwargs), strict=False):
                for dim, (old, new) in enumerate(zip(before, now, strict=False)):
                    if new == number * old:
                        return _repeat(output, number, dim)
        return forward(*args, **kwargs)


def _shapes(args: tuple, kwargs: Mapping[str, Any]) -> list[torch.Size]:
    """Return the shapes of all tensor arguments."""
    return [value.shape for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def _repeat(value: Any, number: int, dim: int) -> Any:
    """Repeat tensors, also in nested tuples and lists, along a dimension."""
    if isinstance(value, Tensor):
        return value.repeat([number if each == dim else 1 for each in range(value.dim())])
    if isinstance(value, (tuple, list)):
        return type(value)(_repeat(each, number, dim) for each in value)
    return value


@contextmanager
def _replaced_forwards(replacements: Mapping[nn.Module, Callable]) -> Iterator[None]:
    """Context manager that replaces the ``forward`` of modules; replacements get the original as first argument."""
    with ExitStack() as stack:
        for module, forward in replacements.items():
            if "forward" in vars(module):
                stack.callback(setattr, module, "forward", module.forward)
            else:
                stack.callback(delattr, module, "forward")
            module.forward = partial(forward, module.forward)
        yield


def _find_block(network: nn.Module, path: str, attention: Collection[str]) -> str:
    names = path.split(".")
    for depth in range(len(names) - 1, -1, -1):
        prefix = "".join(f"{name}." for name in names[:depth])
        inside = {other.removeprefix(prefix).split(".")[0] for other in attention if other.startswith(prefix)}
        container = network.get_submodule(prefix.rstrip("."))
        block = prefix + names[depth]
        called = not isinstance(network.get_submodule(block), (nn.ModuleList, nn.ModuleDict))
        if isinstance(container, CONTAINERS) and len(inside) > 1 and called:
            return block
    return path
