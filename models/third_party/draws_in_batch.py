"""Execution of a network with its draws folded into the batch dimension, from its first stochastic layer on."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any
from unittest import mock

import torch
from lightning_utilities import apply_to_collection
from torch import Tensor, nn

from probattn.draws import draws_in_batch

Stored = deque[tuple[list[torch.Size], Any]]
"""Outputs of a module with the shapes of its inputs, call by call."""


def run_with_draws(
    network: nn.Module, call: Callable, x: Tensor, mask: Tensor | None, *, number: int, stochastic: set[nn.Module]
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
        stochastic: the stochastic layers; without any, the whole network runs on the repeated batch.

    Raises:
        ValueError: an output that is not batch first.
    """
    batch = x.shape[0]  # len() would fix it in an exported program
    stored: dict[nn.Module, Stored] = {}
    if stochastic and number > 1:
        stored = {module: deque() for module in _largest_without(stochastic, network)}
        stores = {module: partial(_run_and_store, calls) for module, calls in stored.items()}
        stops = dict.fromkeys(stochastic, _stop)
        with suppress(_FirstStochasticLayer), draws_in_batch(1), _replaced_forwards({**stores, **stops}):
            return call(x, mask)
    repeat = partial(_repeat, number=number, dim=0, batch=batch)
    replays = {module: partial(_replay, calls, number, batch) for module, calls in stored.items()}
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


def _run_and_store(calls: Stored, forward: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run a module and store a copy of its output, which the network may change in place."""
    output = forward(*args, **kwargs)
    calls.append((_shapes(args, kwargs), apply_to_collection(output, Tensor, Tensor.clone)))
    return output


def _replay(calls: Stored, number: int, batch: int, forward: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return the stored output repeated S times; run the module where that is not what it would return."""
    if calls:
        shapes, output = calls.popleft()
        pairs = zip(shapes, _shapes(args, kwargs), strict=False)
        sizes = [size for before, now in pairs for size in enumerate(zip(before, now, strict=False))]
        grown = [dim for dim, pair in sizes if pair == (batch, number * batch)]
        with suppress(ValueError, IndexError):
            return apply_to_collection(output, Tensor, _repeat, number=number, dim=grown[0], batch=batch)
    return forward(*args, **kwargs)


def _shapes(args: tuple, kwargs: dict[str, Any]) -> list[torch.Size]:
    """Return the shapes of all tensor arguments."""
    return [value.shape for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def _repeat(x: Tensor, *, number: int, dim: int, batch: int) -> Tensor:
    """Repeat a tensor along the dimension of the batch.

    Raises:
        ValueError: the dimension has another size.
        IndexError: there is no such dimension.
    """
    if x.shape[dim] != batch:
        raise ValueError(f"dimension {dim} must have the size {batch}, got {tuple(x.shape)}")
    return torch.cat([x] * number, dim)


@contextmanager
def _replaced_forwards(replacements: Mapping[nn.Module, Callable]) -> Iterator[None]:
    """Context manager that replaces the ``forward`` of modules; replacements get the original as first argument."""
    with ExitStack() as stack:
        for module, forward in replacements.items():
            stack.enter_context(mock.patch.object(module, "forward", partial(forward, module.forward)))
        yield
