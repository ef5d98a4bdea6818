"""Draws in the batch of a network that knows no other dimension, from its first stochastic layer on."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from probattn.handlers import draws_in_batch

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def blocks(network: nn.Module, attention: Collection[str]) -> tuple[str, ...]:
    """Path of the part of a network that each attention layer belongs to, without repetition.

    It is the child, on the way to the layer, of the nearest container in which several children hold attention;
    without such a container it is the layer itself.

    Args:
        network: the network.
        attention: paths of all its attention layers.
    """
    return tuple(dict.fromkeys(_block(network, path, attention) for path in attention))


def run(
    network: nn.Module,
    call: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    mask: Tensor | None,
    *,
    number: int,
    once: Collection[str],
    stops: Collection[str],
) -> Tensor:
    """The outputs of S draws ``(S, batch, ...)``.

    The network runs on the plain batch up to the first layer that draws something, and then as a whole on the batch
    repeated S times, ``(S · batch, ...)``, where blocks that have run already hand back what they gave, repeated in the
    dimension in which their input has grown. So masks and whatever else a network hands to its blocks have the size
    that they expect. What is no block, such as an embedding, runs twice.

    Args:
        network: the network.
        call: runs it on inputs and mask.
        x: inputs ``(batch, ...)``.
        mask: ``(batch, tokens)``, or None.
        number: S.
        once: paths of blocks that run once up to the first draw; without any, draws are folded at the input.
        stops: paths of layers that draw something.

    Raises:
        ValueError: an output that does not start with the batch.
    """
    kept = {network.get_submodule(path): _Kept() for path in once if number > 1}
    if kept:
        stopped = {network.get_submodule(path): _stop for path in stops}
        try:
            with draws_in_batch(1), _forwards({module: outputs.keep for module, outputs in kept.items()} | stopped):
                return call(x, mask)
        except _Reached:
            pass
    handed = {module: partial(outputs.hand_back, number) for module, outputs in kept.items()}
    with draws_in_batch(number), _forwards(handed):
        output = call(_repeated(x, number, 0), _repeated(mask, number, 0))
    batch = x.shape[0]  # len() would fix it in an exported program
    if output.shape[0] != number * batch:
        raise ValueError(
            f"the network gave {tuple(output.shape)} for a batch of {number} draws times {batch} examples: its output "
            "must start with the batch"
        )
    return output.unflatten(0, (number, batch))


class _Reached(Exception):  # noqa: N818
    """The first layer that draws something."""


def _stop(own: Callable, *args: Any, **kwargs: Any) -> None:
    raise _Reached


class _Kept:
    """The shapes of what a block has got, and what it has given, call by call."""

    def __init__(self) -> None:
        self.calls: deque[tuple[list[torch.Size], Any]] = deque()

    def keep(self, own: Callable, *args: Any, **kwargs: Any) -> Any:
        """Runs the block."""
        output = own(*args, **kwargs)
        self.calls.append((_shapes(args, kwargs), output))
        return output

    def hand_back(self, number: int, own: Callable, *args: Any, **kwargs: Any) -> Any:
        """The output kept, repeated S times; a call beyond those kept, or whose batch is not seen, runs the block."""
        if self.calls:
            shapes, output = self.calls.popleft()
            for before, now in zip(shapes, _shapes(args, kwargs), strict=False):
                for dim, (old, new) in enumerate(zip(before, now, strict=False)):
                    if new == number * old:
                        return _repeated(output, number, dim)
        return own(*args, **kwargs)


def _shapes(args: tuple, kwargs: Mapping[str, Any]) -> list[torch.Size]:
    """Those of all tensors that a module is called on."""
    return [value.shape for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def _repeated(value: Any, number: int, dim: int) -> Any:
    """Tensors, also those in tuples, repeated along a dimension."""
    if isinstance(value, Tensor):
        return value.repeat([number if each == dim else 1 for each in range(value.dim())])
    if isinstance(value, (tuple, list)):
        return type(value)(_repeated(each, number, dim) for each in value)
    return value


@contextmanager
def _forwards(replaced: Mapping[nn.Module, Callable]) -> Iterator[None]:
    """Modules whose ``forward`` is another function inside, which gets their own first."""
    with ExitStack() as stack:
        for module, forward in replaced.items():
            if "forward" in vars(module):
                stack.callback(setattr, module, "forward", module.forward)
            else:
                stack.callback(delattr, module, "forward")
            module.forward = partial(forward, module.forward)
        yield


def _block(network: nn.Module, path: str, attention: Collection[str]) -> str:
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
