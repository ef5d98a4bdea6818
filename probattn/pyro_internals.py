"""The private parts of Pyro that this library uses, each with its reason; a new version of Pyro breaks this file alone.

Methods of handlers (``_pyro_sample``, ``_pyro_post_sample``) are Pyro's protocol and may be defined anywhere.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyro.infer.predictive import _predictive_vectorize_plate_name
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger

HANDLERS: Sequence[Messenger] = _PYRO_STACK
"""Active handlers, the outermost first. A global site must see which plates are active; Pyro has no public list."""

PREDICTIVE_PLATE = _predictive_vectorize_plate_name
"""Name of the plate of ``Predictive(parallel=True)``, whose samples lack the dimension of the examples."""


@contextmanager
def without_handlers(hidden: Sequence[Messenger]) -> Iterator[None]:
    """Take some handlers off Pyro's stack; they return in their places on exit."""
    active = list(_PYRO_STACK)
    _PYRO_STACK[:] = [handler for handler in active if all(handler is not other for other in hidden)]
    try:
        yield
    finally:
        _PYRO_STACK[:] = active


def is_svi() -> bool:
    """Return True inside :meth:`pyro.infer.SVI.step`, which trains what the parameter statements of its run return."""
    return any(isinstance(handler, TraceMessenger) and handler.param_only for handler in _PYRO_STACK)


class PathModule(PyroModule):
    """PyroModule that is told its path, when it becomes a child of another PyroModule."""

    def _pyro_set_supermodule(self, name: str, context: Any) -> None:
        super()._pyro_set_supermodule(name, context)
        self.set_path(name)

    def set_path(self, path: str) -> None:
        """Receive the path below the root."""
