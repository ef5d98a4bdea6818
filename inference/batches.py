"""Batches of data: a tensor of inputs, or tuples ``(x, y)`` and ``(x, y, mask)``."""

from collections.abc import Iterable

from torch import Tensor


def iterate_batches(data: Tensor | Iterable) -> Iterable:
    """Return the batches of a data set; a tensor is a single batch of inputs."""
    return (data,) if isinstance(data, Tensor) else data


def unpack_batch(batch: Tensor | tuple) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return ``(x, y, mask)`` of a batch ``x``, ``(x, y)`` or ``(x, y, mask)``, with None for what it lacks."""
    x, y, mask = (*((batch,) if isinstance(batch, Tensor) else batch), None, None)[:3]
    return x, y, mask
