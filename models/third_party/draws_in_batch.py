"""Execution of a network with its draws folded into the batch dimension, from its first stochastic layer on."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from probattn.draws import draws_in_batch

Stored = deque[tuple[list[torch.Size], Any]]
"""Outputs of a module with the shapes of its inputs, call by call."""


def run_with_draws(
    network: nn.Module,
    call: Callable[[Tensor, Tensor | None], Tensor],
    x: Tensor,
    mask: Tensor | None,
    *,
    number: int,
    stochastic: Collection[nn.Module],
    fold_at_input: bool,
) -> Tensor:
    """Return the outputs of S draws ``(S, batch, ...)``.

    The network runs on the plain batch up to the first stochastic layer, and then completely on the batch repeated S
    times, ``(S · batch, ...)``, where modules that have already run return their stored output, repeated along the
    dimension in which their input has grown. So masks and other values that the network passes on have the expected
    size. The code between these modules runs twice.

    Args:
        network: the network.
        call: runs it on inputs and mask.
        x: inputs ``(batch, ...)``.
        mask: ``(batch, tokens)``, or None.
        number: S.
        stochastic: the stochastic layers.
        fold_at_input: run the whole network on the repeated batch.

    Raises:
        ValueError: an output that is not batch first.
    """
    batch = x.shape[0]  # len() would fix it in an exported program
    stored: dict[nn.Module, Stored] = {}
    if number > 1 and not fold_at_input:
        stored = {module: deque() for module in _largest_without(stochastic, network)}
        forwards = {module: partial(_run_and_store, outputs) for module, outputs in stored.items()}
        with (
            suppress(_FirstStochasticLayer),
            draws_in_batch(1),
            _replaced_forwards(forwards | dict.fromkeys(stochastic, _stop)),
        ):
            return call(x, mask)
    repeat = partial(_repeat, number=number, dim=0, size=batch)
    replays = {module: partial(_replay, outputs, number, batch) for module, outputs in stored.items()}
    with draws_in_batch(number), _replaced_forwards(replays):
        output = call(repeat(x), None if mask is None else repeat(mask))
    if output.shape[0] != number * batch:
        raise ValueError(
            f"the network returned {tuple(output.shape)} for a batch of {number} draws times {batch} examples: its "
            "output must start with the batch"
        )
    return output.unflatten(0, (number, batch))


def _largest_without(stochastic: Collection[nn.Module], module: nn.Module) -> Iterator[nn.Module]:
    """Iterate over the largest submodules that contain no stochastic layer, without containers that are not called."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or not stochastic.isdisjoint(child.modules()):
            if child not in stochastic:
                yield from _largest_without(stochastic, child)
        else:
            yield child


class _FirstStochasticLayer(Exception):  # noqa: N818
    """Signal that the first stochastic layer is reached."""


def _stop(forward: Callable, *args: Any, **kwargs: Any) -> None:
    raise _FirstStochasticLayer


def _run_and_store(outputs: Stored, forward: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run a module and store a copy of its output, which the network may change in place."""
    output = forward(*args, **kwargs)
    outputs.append((_shapes(args, kwargs), _map(Tensor.clone, output)))
    return output


def _replay(outputs: Stored, number: int, batch: int, forward: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return the stored output repeated S times; run the module where that is not what it would return."""
    if outputs:
        shapes, output = outputs.popleft()
        for before, now in zip(shapes, _shapes(args, kwargs), strict=False):
            for dim, sizes in enumerate(zip(before, now, strict=False)):
                if sizes == (batch, number * batch):
                    with suppress(ValueError):
                        return _map(partial(_repeat, number=number, dim=dim, size=batch), output)
    return forward(*args, **kwargs)


def _shapes(args: tuple, kwargs: Mapping[str, Any]) -> list[torch.Size]:
    """Return the shapes of all tensor arguments."""
    return [value.shape for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to a tensor, or to all tensors in tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return type(value)(**{name: _map(function, part) for name, part in value.items()})
    if type(value) in (tuple, list):
        return type(value)(_map(function, part) for part in value)
    return value


def _repeat(x: Tensor, *, number: int, dim: int, size: int) -> Tensor:
    """Repeat a tensor along the dimension of the batch.

    Raises:
        ValueError: the dimension has another size.
    """
    if x.dim() <= dim or x.shape[dim] != size:
        raise ValueError(f"a dimension {dim} of size {size} is needed, got {tuple(x.shape)}")
    return x.repeat([number if each == dim else 1 for each in range(x.dim())])


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
