"""Effects of parameter access: which handlers see a parameter, and when Pyro's parameter store is used.

Pyro turns each access to a parameter of a ``PyroModule`` into a ``pyro.param`` site, which is about half of its
overhead and writes to one store for the whole process. Modules of this library create that site only for handlers that
use it: those that replace parameters (``poutine.lift``, ``poutine.substitute``), traces, and :class:`pyro.infer.SVI`,
the only one that uses the store.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyro.nn import PyroModule
from pyro.params.param_store import param_with_module_name
from pyro.poutine.infer_config_messenger import InferConfigMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import effectful
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn
from torch.distributions.constraints import real

from probattn.handlers import left_of_examples, outside_data_plate, stored_sites
from probattn.pyro_compat import (
    HANDLER_STACK,
    AttributeReads,
    call_inside,
    constrained,
    full_name,
    has_module_local_params,
    is_inside_call,
    module_path,
    stored_params,
)
from probattn.thread_values import ThreadValue
from probattn.torch_compat import own_modules, own_parameters

_NONE, _HANDLERS, _STORE = range(3)
_HIDDEN_FROM: ThreadValue[int | None] = ThreadValue(None)
"""Position in the handler stack from which on traces do not see parameters."""
_REPLACES: dict[type, bool] = {InferConfigMessenger: False}
_RECORDS: dict[type, bool] = {}


class ParamListener(Messenger):
    """Base of handlers that see parameter access also inside :func:`params_hidden_from_traces`."""


class SkipParamEffects(AttributeReads):
    """Mixin, in front of ``PyroModule``, that skips the ``pyro.param`` effect of parameter access no handler uses.

    Under :class:`pyro.infer.SVI` parameters are registered in Pyro's parameter store, as for any ``PyroModule``.

    Raises:
        RuntimeError: under SVI, if the store holds another module's parameter of the same name.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; under SVI, check Pyro's parameter store first."""
        if stored_sites() is None and HANDLER_STACK and _param_effect() == _STORE:
            check_param_store(self)
        if is_inside_call(self):
            return call_inside(self, *args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _read_parameter(self, name: str, parameter: nn.Parameter) -> Tensor:
        effect = _param_effect()
        if effect == _NONE:
            return parameter
        return self._read_by_pyro(name) if effect == _STORE else _param_site(full_name(self, name), parameter)

    def _read_pyro_param(self, name: str, unconstrained: Tensor, constraint: Any, event_dim: int | None) -> Tensor:
        effect = _param_effect()
        if effect == _STORE:
            return self._read_by_pyro(name)
        value = constrained(unconstrained, constraint)
        if effect == _NONE:
            return value
        return _param_site(full_name(self, name), value, constraint=constraint, event_dim=event_dim)

    def _read_pyro_sample(self, name: str, prior: Any) -> Tensor:
        with outside_data_plate():
            value = self._read_by_pyro(name)
        return left_of_examples(value, getattr(prior, "event_dim", value.dim()))

    def _read_module(self, name: str, child: nn.Module) -> nn.Module:
        effect = _param_effect()
        if effect == _STORE:
            return self._read_by_pyro(name)
        if effect == _HANDLERS:
            for key, parameter in child.named_parameters(prefix=""):
                _param_site(param_with_module_name(full_name(self, name), key), parameter)
        return child


@contextmanager
def params_hidden_from_traces() -> Iterator[None]:
    """Keep parameters out of traces inside; outer traces, and handlers that replace parameters, still see them."""
    with _HIDDEN_FROM.replaced(len(HANDLER_STACK)):
        yield


def check_param_store(module: nn.Module) -> None:
    """Check that no other module's parameter has a name of this module's in Pyro's parameter store.

    Raises:
        RuntimeError: naming the parameter and the remedies.
    """
    stored = stored_params()
    if not stored:
        return
    for name, parameter in _store_names(module):
        if stored.get(name, parameter) is not parameter:
            raise RuntimeError(
                f"parameter {name!r} in Pyro's parameter store belongs to another module, which SVI would train "
                "instead of this one: call pyro.clear_param_store() first (trained modules keep their parameters), or "
                "train each model in its own `with pyro.get_param_store().scope():`"
            )


def _store_names(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module's PyroModules by their names in the store."""
    for part in module.modules():
        if not isinstance(part, PyroModule):
            continue
        path = f"{module_path(part)}." if module_path(part) else ""
        for name, parameter in own_parameters(part).items():
            if parameter is not None:
                yield path + name.removesuffix("_unconstrained"), parameter
        for name, child in own_modules(part).items():
            if child is not None and not isinstance(child, PyroModule):
                for key, parameter in child.named_parameters():
                    yield param_with_module_name(path + name, key), parameter


def _param_site(name: str, value: Tensor, *, constraint: Any = real, event_dim: int | None = None) -> Tensor:
    """Send a parameter through the active handlers, without the parameter store, and return their value of it."""
    site = effectful(type="param")(lambda *_, **__: value)
    with outside_data_plate():  # where poutine.lift gives it a prior, all examples share one value
        return site(name, value, constraint=constraint, event_dim=event_dim, name=name)


def _param_effect() -> int:
    """Return what parameter access must reach now: nothing, the active handlers, or the parameter store as well."""
    effect, hidden_from = _NONE, _HIDDEN_FROM.value
    for position, handler in enumerate(HANDLER_STACK):
        kind = type(handler)
        replaces, records = _REPLACES.get(kind), _RECORDS.get(kind)
        if replaces is None:
            replaces = _REPLACES[kind] = hasattr(kind, "_pyro_param")
        if records is None:
            records = _RECORDS[kind] = hasattr(kind, "_pyro_post_param")
        if records and isinstance(handler, TraceMessenger) and handler.param_only:
            return _HANDLERS if has_module_local_params() else _STORE
        replaces = replaces and getattr(handler, "params", ()) is not None  # poutine.replay may have none
        outside = hidden_from is None or position < hidden_from or isinstance(handler, ParamListener)
        if replaces or (records and outside):
            effect = _HANDLERS
    return effect
