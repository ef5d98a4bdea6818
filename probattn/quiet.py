"""Pyro modules that make no statements of their parameters where nobody listens, which half of Pyro's cost is."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pyro.nn import PyroModule
from pyro.poutine.runtime import _PYRO_STACK

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


class Quiet:
    """Mixin, in front of ``PyroModule``: within :func:`quiet`, parameters and children are looked up as PyTorch does.

    Pyro turns each look-up into ``pyro.param`` statements, for handlers that capture or replace parameters.
    """

    def __getattr__(self, name: str) -> Any:
        if _QUIET.get():
            for table in ("_parameters", "_modules"):
                found = self.__dict__.get(table, {}).get(name)
                if found is not None and not (isinstance(found, PyroModule) and not found._pyro_name):
                    return found
        return super().__getattr__(name)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences modules inside, unless a handler outside listens to parameters, as ``poutine.trace`` does."""
    listening = any(hasattr(handler, f"_pyro{when}_param") for handler in _PYRO_STACK for when in ("", "_post"))
    token = _QUIET.set(not listening)
    try:
        yield
    finally:
        _QUIET.reset(token)
