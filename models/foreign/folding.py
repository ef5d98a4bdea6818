"""Draws in the batch of a network that knows no other dimension, from its first stochastic block on."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from probattn.handlers import folded

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Block(NamedTuple):
    """A part of a network that maps the residual stream to itself, and where its output has the batch."""

    path: str
    batch_dim: int


def blocks(network: nn.Module, attention: Iterable[str]) -> tuple[Block, ...]:
    """The part of a network that each attention layer belongs to, without repetition.

    It is the child, on the way to the layer, of the nearest container in which several children hold attention;
    without such a container it is the layer itself.

    Args:
        network: the network.
        attention: paths of all its attention layers.
    """
    attention = list(attention)
    return tuple(dict.fromkeys(_block(network, path, attention) for path in attention))


def run(
    network: nn.Module,
    call: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    mask: Tensor | None,
    *,
    number: int,
    below: Iterable[Block],
    stops: Iterable[Block],
) -> Tensor:
    """The outputs of S draws ``(S, batch, ...)``.

    The network runs on the plain batch up to the first block that draws something, and then as a whole on the batch
    repeated S times, ``(S · batch, ...)``, where blocks that have run already hand back what they gave, repeated. So
    masks and whatever else a network hands to its blocks have the size that they expect.

    Args:
        network: the network.
        call: runs it on inputs and mask.
        x: inputs ``(batch, ...)``.
        mask: ``(batch, tokens)``, or None.
        number: S.
        below: blocks that draw nothing; without any, draws are folded at the input.
        stops: blocks that do.

    Raises:
        ValueError: an output that does not start with the batch.
    """
    kept = {network.get_submodule(block.path): _Kept(block.batch_dim) for block in below}
    if kept:
        stopped = {network.get_submodule(block.path): _stop for block in stops}
        try:
            with _forwards({module: outputs.keep for module, outputs in kept.items()} | stopped):
                return call(x, mask)
        except _Reached:
            pass
    handed = {module: partial(outputs.hand_back, number) for module, outputs in kept.items()}
    with folded(number), _forwards(handed):
        output = call(_repeated(x, number, 0), _repeated(mask, number, 0))
    if len(output) != number * len(x):
        raise ValueError(
            f"the network gave {tuple(output.shape)} for a batch of {number} draws times {len(x)} examples: its output "
            "must start with the batch"
        )
    return output.unflatten(0, (number, len(x)))


class _Reached(Exception):  # noqa: N818
    """The first block that draws something."""


def _stop(own: Callable, *args: Any, **kwargs: Any) -> None:
    raise _Reached


class _Kept:
    """What a block has given, call by call.

    Args:
        dim: the dimension of the batch.
    """

    def __init__(self, dim: int) -> None:
        self.dim, self.outputs = dim, deque()

    def keep(self, own: Callable, *args: Any, **kwargs: Any) -> Any:
        """Runs the block."""
        self.outputs.append(own(*args, **kwargs))
        return self.outputs[-1]

    def hand_back(self, number: int, own: Callable, *args: Any, **kwargs: Any) -> Any:
        """The outputs kept, repeated S times; calls beyond them run the block."""
        return _repeated(self.outputs.popleft(), number, self.dim) if self.outputs else own(*args, **kwargs)


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


def _block(network: nn.Module, path: str, attention: list[str]) -> Block:
    names, module = path.split("."), network.get_submodule(path)
    batch_dim = 0 if getattr(module, "batch_first", True) else 1
    for depth in range(len(names) - 1, -1, -1):
        prefix = "".join(f"{name}." for name in names[:depth])
        inside = {other.removeprefix(prefix).split(".")[0] for other in attention if other.startswith(prefix)}
        container = network.get_submodule(prefix.rstrip("."))
        block = prefix + names[depth]
        called = not isinstance(network.get_submodule(block), (nn.ModuleList, nn.ModuleDict))
        if isinstance(container, CONTAINERS) and len(inside) > 1 and called:
            return Block(block, batch_dim)
    return Block(path, batch_dim)
