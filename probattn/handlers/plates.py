"""The data plate: the plate of the examples, at dimension −1."""

from contextlib import AbstractContextManager

from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor

from probattn.handlers.local import local_sites
from probattn.pyro_compat import HANDLER_STACK, PREDICTIVE_PLATE, hidden_handlers


def has_data_plate() -> bool:
    """Return True inside a plate at dimension −1, the user's or that of :class:`local_sites`."""
    return any(_is_data_plate(handler) or isinstance(handler, local_sites) for handler in HANDLER_STACK)


def data_plate(name: str, size: int) -> Messenger:
    """Return a data plate, at dimension −1 and without subsampling."""
    return IndepMessenger(name, size, dim=-1)


def outside_data_plate() -> AbstractContextManager[None]:
    """Hide plates at dimension −1 from the sample sites inside: one value, and one KL, for all examples."""
    return hidden_handlers(_is_data_plate)


def left_of_examples(value: Tensor, event_dim: int) -> Tensor:
    """Return draws ``(S, *event)`` of ``Predictive(parallel=True)`` as ``(S, 1, *event)``.

    ``Predictive`` omits the dimension of the examples at sites with an event, so that draws would be taken for
    examples.
    """
    plates = (handler for handler in HANDLER_STACK if getattr(handler, "name", None) == PREDICTIVE_PLATE)
    for plate in plates:
        if value.shape[: value.dim() - event_dim] == (plate.size,) and plate.dim < -1:
            return value.unflatten(0, (plate.size, *(1,) * (-1 - plate.dim)))
    return value


def _is_data_plate(handler: Messenger) -> bool:
    return isinstance(handler, IndepMessenger) and handler.dim == -1
