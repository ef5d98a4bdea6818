"""The examples of a batch in plates: which plate is theirs, and which dimensions of a batch have no
plate.

A batch of examples is right-aligned with plates. Where a plate of the examples is active (a user's
at dimension −1, or that of :class:`~probattn.local_sites`), dimension −1 of a batch is that plate.
Where there is none, all examples belong to one event, as for any statement outside plates, and no
plate is opened for them.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import chain
from typing import Any, NamedTuple

from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.scale_messenger import ScaleMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor

from probattn.draws import num_samples
from probattn.functional.context import bound
from probattn.local_sites import local_sites, size_of
from probattn.messages import batch_size, is_latent, law_of, value_of
from probattn.pyro_internals import HANDLERS, PLATES_OF_SAMPLES

_BATCH: ContextVar[tuple[int, ...] | None] = ContextVar("batch", default=None)


def examples(batch_shape: Sequence[int]) -> AbstractContextManager[Any]:
    """Declare the shape ``(..., examples)`` of the batch inside; (0,) where a program has no batch,
    such as a guide."""
    return bound(_BATCH, tuple(batch_shape))


def num_examples() -> int | None:
    """Return the number of examples of the batch, None where nothing tells it."""
    batch_shape = _BATCH.get()
    return batch_size() if batch_shape is None else batch_shape[-1]


def is_plate_of_examples(handler: Messenger) -> bool:
    """Return True for a plate at dimension −1 with the size of the batch, other than Pyro's plates
    of samples."""
    if not isinstance(handler, IndepMessenger) or handler.dim != -1:
        return False
    return handler.name not in PLATES_OF_SAMPLES and size_of(handler) == num_examples()


def handlers_of_examples() -> list[Messenger]:
    """Return the active plates of the examples, and masks and scales with an entry for each
    example."""
    plates = [handler for handler in HANDLERS if is_plate_of_examples(handler)]
    weights = []
    for handler in HANDLERS:
        weight = weight_of(handler)
        if not isinstance(weight, Tensor) or weight.dim() == 0:
            continue
        if plates or weight.shape[-1] == num_examples():
            weights.append(handler)
    return [*plates, *weights]


def weight_of(handler: Messenger) -> float | Tensor | bool | None:
    """Return the factor of a mask or a scale, None for other handlers."""
    if isinstance(handler, MaskMessenger):
        return handler.mask
    if isinstance(handler, ScaleMessenger):
        return handler.scale
    return None


class Layout(NamedTuple):
    """Place of a batch ``(..., examples)`` in the active plates.

    Args:
        joint: number of its last dimensions that have no plate, and so belong to one event; 0 in a
            plate of examples.
        is_shifted: dimension d of the batch is dimension d + 1 of the plates, since what is right
            of it are examples alone. So it is where dimension −1 of the plates belongs to something
            else, such as Pyro's particles, and where the batch itself has its other dimensions
            there.
    """

    joint: int
    is_shifted: bool


PLATED = Layout(0, is_shifted=False)


def layout(batch_shape: Sequence[int]) -> Layout:
    """Return the place of a batch ``(..., examples)`` under the active handlers."""
    if any(isinstance(each, local_sites) or is_plate_of_examples(each) for each in HANDLERS):
        return PLATED
    taken = {handler.dim for handler in HANDLERS if isinstance(handler, IndepMessenger)}
    taken |= enumerated_dims()
    if num_samples() is not None:
        taken.add(-2)
    dims = [dim for dim in range(-len(batch_shape), -1) if batch_shape[dim] > 1]
    fits = all(dim in taken for dim in dims)
    fits_shifted = all(dim + 1 in taken for dim in dims)
    is_shifted = -1 in taken or (fits_shifted and not fits)
    joint = 1
    for dim in range(-2, -1 - len(batch_shape), -1):  # groups of examples
        if batch_shape[dim] == 1 or dim + is_shifted in taken:
            break
        joint += 1
    return Layout(joint, is_shifted)


def enumerated_dims() -> set[int]:
    """Return the dimensions that discrete sites so far have where Pyro enumerates them, left of
    those of their law."""
    dims: set[int] = set()
    if not any(isinstance(handler, EnumMessenger) for handler in HANDLERS):
        return dims
    traces = [handler.trace for handler in HANDLERS if isinstance(handler, TraceMessenger)]
    for node in chain.from_iterable(trace.nodes.values() for trace in traces):
        if is_latent(node) and "enumerate" in (node["infer"] or ()):
            law = law_of(node)
            batch_dim = value_of(node).dim() - law.event_dim
            if batch_dim > len(law.batch_shape):
                dims.add(-batch_dim)
    return dims


def is_shifted() -> bool:
    """Return True where dimension −1 of the plates belongs to samples instead of examples."""
    return layout(_BATCH.get() or (1,)).is_shifted
