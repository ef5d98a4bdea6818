"""The examples of a batch in plates: which plate is theirs, and which dimensions of a batch have no plate.

A batch of examples is right-aligned with plates. Where a plate of the examples is active (a user's at dimension −1, or
that of :class:`~probattn.local_sites`), dimension −1 of a batch is that plate. Where there is none, all examples belong
to one event, as for any statement outside plates, and no plate is opened for them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.scale_messenger import ScaleMessenger
from torch import Tensor

from probattn.draws import num_samples
from probattn.local_sites import local_sites
from probattn.messages import batch_size
from probattn.pyro_internals import HANDLERS, PLATES_OF_SAMPLES, enumerated_dims

_BATCH: ContextVar[tuple[int, ...] | None] = ContextVar("batch", default=None)


@contextmanager
def examples(batch_shape: Sequence[int]) -> Iterator[None]:
    """Declare the shape ``(..., examples)`` of the batch inside; (0,) where a program has no batch, such as a guide."""
    token = _BATCH.set(tuple(batch_shape))
    try:
        yield
    finally:
        _BATCH.reset(token)


def num_examples() -> int | None:
    """Return the number of examples of the batch, None where nothing tells it."""
    batch_shape = _BATCH.get()
    return batch_size() if batch_shape is None else batch_shape[-1]


def is_plate_of_examples(handler: Messenger) -> bool:
    """Return True for a plate at dimension −1 with the size of the batch, other than Pyro's plates of samples."""
    if not isinstance(handler, IndepMessenger) or handler.dim != -1:
        return False
    return handler.name not in PLATES_OF_SAMPLES and size_of(handler) == num_examples()


def size_of(plate: IndepMessenger) -> int:
    """Return the number of rows that a plate has in this run, which a subsampling plate chooses."""
    return getattr(plate, "subsample_size", plate.size)


def handlers_of_examples() -> list[Messenger]:
    """Return the active plates of the examples, and masks and scales with an entry for each example."""
    kinds = IndepMessenger | MaskMessenger | ScaleMessenger
    candidates = [handler for handler in HANDLERS if isinstance(handler, kinds)]
    if not candidates:
        return candidates
    plates = [handler for handler in candidates if is_plate_of_examples(handler)]
    number = num_examples()
    hidden: list[Messenger] = []
    for handler in candidates:
        weight = weight_of(handler)
        is_each = isinstance(weight, Tensor) and weight.dim() > 0
        if handler in plates or (is_each and (plates or weight.shape[-1] == number)):
            hidden.append(handler)
    return hidden


def weight_of(handler: Messenger) -> float | Tensor | bool | None:
    """Return the factor of a mask or a scale, None for other handlers."""
    if isinstance(handler, MaskMessenger):
        return handler.mask
    if isinstance(handler, ScaleMessenger):
        return handler.scale
    return None


class Layout(NamedTuple):
    """Dimensions of a batch outside plates.

    Args:
        joint: dimensions of the batch, counted from the right, that belong to one event; none where the examples have
            a plate.
        is_shifted: dimension d of a batch is dimension d + 1 of the plates, since that on the right of it are the
            examples alone. So it is where dimension −1 of the plates belongs to something else, such as Pyro's
            particles, and where the batch itself has its other dimensions there.
    """

    joint: tuple[int, ...]
    is_shifted: bool


def layout(batch_shape: Sequence[int]) -> Layout:
    """Return which dimensions of a batch ``(..., examples)`` have no plate, under the active handlers."""
    dims = [dim for dim in range(-len(batch_shape), -1) if batch_shape[dim] > 1]
    is_plated = local_sites in map(type, HANDLERS)
    if is_plated and not dims:
        return Layout((), is_shifted=False)
    is_plated = is_plated or any(map(is_plate_of_examples, HANDLERS))
    taken = {handler.dim for handler in HANDLERS if isinstance(handler, IndepMessenger)}
    taken |= enumerated_dims()
    if num_samples() is not None:
        taken.add(-2)
    unknown = [dim for dim in dims if dim not in taken]
    is_shifted = not is_plated and (-1 in taken or (unknown != [] and all(dim + 1 in taken for dim in dims)))
    joint = [dim for dim in dims if dim + is_shifted not in taken]
    return Layout((*joint,) if is_plated else (*joint, -1), is_shifted)


def is_shifted() -> bool:
    """Return True where dimension −1 of the plates belongs to samples instead of examples."""
    return layout(_BATCH.get() or (1,)).is_shifted
