"""The plate of the examples, at dimension −1, as layers use it."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from probattn.handlers.local import local_sites


def has_data_plate() -> bool:
    """Return True inside a plate at dimension −1, the user's or that of :class:`local_sites`."""
    return any(_is_data_plate(handler) or isinstance(handler, local_sites) for handler in _PYRO_STACK)


def data_plate(name: str, size: int) -> Messenger:
    """A plate of the examples, at dimension −1 and without subsampling."""
    return IndepMessenger(name, size, dim=-1)


@contextmanager
def outside_data_plate() -> Iterator[None]:
    """Sample statements inside do not see a plate at dimension −1: one value, and one KL, for all examples."""
    installed = list(_PYRO_STACK)
    _PYRO_STACK[:] = [handler for handler in installed if not _is_data_plate(handler)]
    try:
        yield
    finally:
        _PYRO_STACK[:] = installed


def left_of_examples(value: Tensor, event_dim: int) -> Tensor:
    """Return draws ``(S, *event)`` that ``Predictive(parallel=True)`` has set as ``(S, 1, *event)``.

    It leaves out the dimension of the examples where a site has an event, so that draws would be taken for examples.
    """
    plates = (handler for handler in _PYRO_STACK if getattr(handler, "name", None) == "_num_predictive_samples")
    for plate in plates:
        if value.shape[: value.dim() - event_dim] == (plate.size,) and plate.dim < -1:
            return value.unflatten(0, (plate.size, *(1,) * (-1 - plate.dim)))
    return value


def _is_data_plate(handler: Messenger) -> bool:
    return isinstance(handler, IndepMessenger) and handler.dim == -1
