"""Parameter access of library modules: which Pyro handlers see it, and when the global parameter store is used.

Pyro turns each access of a parameter of a ``PyroModule`` into a ``pyro.param`` statement, which costs half of its
overhead and writes to one store for the whole process. Modules of this library make that statement only for handlers
that use it: those that replace parameters (``poutine.lift``, ``poutine.substitute``), traces, and
:class:`pyro.infer.SVI`, which alone uses the store.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pyro
from pyro.nn import PyroModule
from pyro.nn import module as pyro_module
from pyro.poutine.infer_config_messenger import InferConfigMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK, effectful
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn
from torch.distributions import transform_to
from torch.distributions.constraints import real

from probattn.handlers import left_of_examples, outside_data_plate

_NOBODY, _HANDLERS, _STORE = range(3)
_QUIET: ContextVar[int | None] = ContextVar("quiet", default=None)
_REPLACES: dict[type, bool] = {InferConfigMessenger: False}
_LISTENS: dict[type, bool] = {}


class Listener(Messenger):
    """Base of handlers that see parameters also within :func:`quiet`, as they are accessed."""


class Quiet:
    """Mixin, in front of ``PyroModule``, that skips ``pyro.param`` statements which no handler would see.

    Under :class:`pyro.infer.SVI` parameters are registered in Pyro's global store, as those of any ``PyroModule``.

    Raises:
        RuntimeError: under SVI, where the store holds another module's parameter of the same name.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; under SVI, check Pyro's store before."""
        if _PYRO_STACK and _audience() == _STORE:
            check_store(self)
        return super().__call__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        state = self.__dict__
        if name in state.get("_pyro_params", ()):
            return self._constrained(name)
        if name in state.get("_parameters", ()) and not name.endswith("_unconstrained"):
            return self._parameter(name, state["_parameters"][name])
        if name in state.get("_pyro_samples", ()):
            with outside_data_plate():
                value = super().__getattr__(name)
            return left_of_examples(value, getattr(self._pyro_samples[name], "event_dim", value.dim()))
        child = state.get("_modules", {}).get(name)
        if child is not None and not (isinstance(child, PyroModule) and not child._pyro_name):
            return self._child(name, child)
        return super().__getattr__(name)

    def _parameter(self, name: str, value: nn.Parameter | None) -> Tensor | None:
        audience = _audience() if self._pyro_context.active and value is not None else _NOBODY
        if audience == _STORE:
            return super().__getattr__(name)
        return value if audience == _NOBODY else _statement(self._pyro_get_fullname(name), value)

    def _constrained(self, name: str) -> Tensor:
        audience = _audience() if self._pyro_context.active else _NOBODY
        if audience == _STORE:
            return super().__getattr__(name)
        constraint, event_dim = self._pyro_params[name]
        value = transform_to(constraint)(self._parameters[f"{name}_unconstrained"])
        if audience == _NOBODY:
            return value
        return _statement(self._pyro_get_fullname(name), value, constraint=constraint, event_dim=event_dim)

    def _child(self, name: str, child: nn.Module) -> nn.Module:
        if isinstance(child, PyroModule) or not self._pyro_context.active:
            return child
        audience = _audience()
        if audience == _STORE:
            return super().__getattr__(name)
        if audience == _HANDLERS:
            for key, parameter in child.named_parameters(prefix=""):
                _statement(f"{self._pyro_get_fullname(name)}$$${key}", parameter)
        return child


@contextmanager
def quiet() -> Iterator[None]:
    """Keep parameters from traces inside; traces outside, and handlers that replace parameters, see them."""
    token = _QUIET.set(len(_PYRO_STACK))
    try:
        yield
    finally:
        _QUIET.reset(token)


def check_store(module: nn.Module) -> None:
    """Refuse to train a module by SVI under names that another module's parameters have in Pyro's global store.

    Raises:
        RuntimeError: naming the parameter and the remedies.
    """
    stored = pyro.get_param_store()._params
    if not stored:
        return
    for name, parameter in _store_names(module):
        if stored.get(name, parameter) is not parameter:
            raise RuntimeError(
                f"parameter {name!r} in Pyro's global store belongs to another module, which SVI would train instead "
                "of this one: call pyro.clear_param_store() first (trained modules keep their parameters), or train "
                "each model in its own `with pyro.get_param_store().scope():`"
            )


def _store_names(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for part in module.modules():
        if not isinstance(part, PyroModule):
            continue
        path = f"{part._pyro_name}." if part._pyro_name else ""
        for name, parameter in part._parameters.items():
            if parameter is not None:
                yield path + name.removesuffix("_unconstrained"), parameter
        for name, child in part._modules.items():
            if child is not None and not isinstance(child, PyroModule):
                for key, parameter in child.named_parameters():
                    yield f"{path}{name}$$${key}", parameter


def _statement(name: str, value: Tensor, *, constraint: Any = real, event_dim: int | None = None) -> Tensor:
    """The value that handlers make of a parameter, without the global store."""
    statement = effectful(type="param")(lambda *_, **__: value)
    with outside_data_plate():  # where poutine.lift gives it a prior, all examples share one value
        return statement(name, value, constraint=constraint, event_dim=event_dim, name=name)


def _audience() -> int:
    """Which kind of handler sees a parameter now: none, one without the store, or SVI."""
    heard, inner = _NOBODY, _QUIET.get()
    for position, handler in enumerate(_PYRO_STACK):
        kind = type(handler)
        replaces, listens = _REPLACES.get(kind), _LISTENS.get(kind)
        if replaces is None:
            replaces = _REPLACES[kind] = hasattr(kind, "_pyro_param")
        if listens is None:
            listens = _LISTENS[kind] = hasattr(kind, "_pyro_post_param")
        if listens and isinstance(handler, TraceMessenger) and handler.param_only:
            return _HANDLERS if pyro_module._MODULE_LOCAL_PARAMS else _STORE
        replaces = replaces and getattr(handler, "params", ()) is not None  # poutine.replay may have none
        outside = inner is None or position < inner or isinstance(handler, Listener)
        if replaces or (listens and outside):
            heard = _HANDLERS
    return heard
