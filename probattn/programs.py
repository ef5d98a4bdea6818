"""Pyro programs of any kind: modules, functions, and either wrapped by handlers such as ``pyro.condition``."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import pyro
import torch
from pyro.nn import PyroModule, PyroSample
from pyro.poutine.messenger import unwrap
from pyro.poutine.runtime import Message
from pyro.poutine.trace_messenger import TraceHandler
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from probattn.handlers import exclusive
from probattn.param_effects import ParamListener
from probattn.pyro_compat import add_param_state, has_pyro_samples, is_param_state_missing, store_param, stored_params

Program = Callable[..., Any]
"""A Pyro model or guide: a module, a function, or either of them wrapped by handlers."""

_STATEMENTS = ("pyro.primitives", "pyro.poutine", "pyro.infer", "pyro.contrib")
"""Packages of Pyro with statements and handlers."""
_OWNERS = WeakTensorKeyDictionary()
"""The function that created each parameter in Pyro's parameter store, as a weak reference."""


def modules(program: Program) -> list[nn.Module]:
    """Return the modules that a program calls: itself, one under handlers, or those that a function refers to.

    Those of a function are found in its closure, its defaults, the globals that it names, and functions among these.
    """
    found: dict[int, nn.Module] = {}
    _collect(program, found, set())
    return list(found.values())


def references(function: FunctionType) -> dict[str, Any]:
    """Return the objects that a function refers to by name: in its closure, its defaults, or as globals."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    found = {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}
    defaults = function.__defaults__ or ()
    parameters = code.co_varnames[: code.co_argcount]
    found |= dict(zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True))
    found |= function.__kwdefaults__ or {}
    found |= {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
    return found | {"__wrapped__": getattr(function, "__wrapped__", None)}


def attribute(program: Program, name: str) -> Any:
    """Return an attribute of a program, or of the first of its modules that has it, else None."""
    held = (part for module in modules(program) for part in module.modules())
    for owner in (program, getattr(program, "function", None), *held):
        if hasattr(owner, name):
            return getattr(owner, name)
    return None


def device(*programs: Program | None) -> torch.device | None:
    """Return the device of the first parameter of any of these programs, or None without parameters."""
    for program in programs:
        for module in () if program is None else modules(program):
            for parameter in module.parameters():
                return parameter.device
    return None


def has_statements(module: nn.Module) -> bool:
    """Return True if a module samples by statements of Pyro's: ``PyroSample`` attributes, or code that names Pyro.

    Code of this library counts as without, since its statements also work with stored values of their sites (see
    :class:`~probattn.handlers.StoredSites`).
    """
    seen: set[int] = set()
    for part in module.modules():
        attributes = [vars(part), *(vars(kind) for kind in type(part).__mro__ if not _is_library(kind))]
        if isinstance(part, FunctionModule) or has_pyro_samples(part):
            return True
        if any(_is_statement(value, seen) for each in attributes for value in each.values()):
            return True
    return False


def as_module(program: Program) -> nn.Module:
    """Return the program if it is a module, else a :class:`FunctionModule` around it."""
    return program if isinstance(program, nn.Module) else FunctionModule(program)


class FunctionModule(nn.Module):
    """Module around a function with ``pyro.param`` statements, or around a wrapped model.

    Values of ``pyro.param`` statements stay in Pyro's parameter store, where ``pyro.param(name)`` and
    :class:`pyro.infer.SVI` find them, and are registered here as well. They exist after the first run.

    Args:
        function: the program.
    """

    def __init__(self, function: Program) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules(function))
        self.has_run = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
            RuntimeError: a ``pyro.param`` statement that did not run in the first run, or whose parameter belongs to
                another program.
        """
        with _CaptureParams(self) as captured:
            result = self.function(*args, **kwargs)
        known = {id(parameter) for parameter in self.parameters()}
        for name, parameter in captured.parameters.items():
            if id(parameter) in known:
                continue
            if self.has_run:
                raise RuntimeError(
                    f"{self.label} has a parameter {name!r} that did not exist in its first run: an optimiser may be "
                    "without it; let every pyro.param statement run each time"
                )
            self.register_parameter(name.replace(".", "/"), parameter)
        self.has_run = True
        return result

    @property
    def label(self) -> str:
        """Name of the function, for messages."""
        return getattr(self.function, "__name__", type(self.function).__name__)


@contextmanager
def local_params(*programs: Program) -> Iterator[None]:
    """Keep parameters of modules out of Pyro's parameter store inside (Pyro's setting ``module_local_params``).

    Other threads wait (see :func:`~probattn.handlers.exclusive`).

    Raises:
        RuntimeError: a ``PyroModule`` runs inside that was not found in the programs.
    """
    with exclusive(), pyro.settings.context(module_local_params=True):
        for program in programs:
            _add_param_states(program, set())
        try:
            yield
        except AttributeError as error:
            if not is_param_state_missing(error):
                raise
            raise RuntimeError(
                "a PyroModule runs in this program that was not found in its closure, defaults or globals: make it an "
                "attribute of a module, or wrap the function in a class with a forward method"
            ) from error


def _add_param_states(program: Program, seen: set[int]) -> None:
    """Give the modules of a program, and of the model that a guide holds, their own parameter states."""
    for module in modules(program):
        for part in module.modules():
            if isinstance(part, PyroModule):
                add_param_state(part)
            held = part.__dict__.get("_model")
            if isinstance(held, tuple) and id(held[0]) not in seen:
                seen.add(id(held[0]))
                _add_param_states(held[0], seen)


class _CaptureParams(ParamListener):
    """Handler that collects the parameters of a run; tensors in the store become ``nn.Parameter`` before use."""

    def __init__(self, module: FunctionModule) -> None:
        super().__init__()
        self.module = module
        self.parameters: dict[str, nn.Parameter] = {}

    def _pyro_post_param(self, msg: Message) -> None:
        name = msg["name"]
        value = stored_params().get(name)
        if value is None or getattr(msg["value"], "unconstrained", lambda: None)() is not value:
            if isinstance(msg["value"], nn.Parameter):  # of a module, outside the parameter store
                self.parameters[name] = msg["value"]
            return
        if not isinstance(value, nn.Parameter):
            value = nn.Parameter(value.detach())
            store_param(name, value)
            msg["value"] = pyro.get_param_store()[name]
        function = unwrap(self.module.function)
        owner = _OWNERS.setdefault(value, ref(function))()
        if owner is not None and owner is not function:
            raise RuntimeError(
                f"parameter {name!r} in Pyro's parameter store belongs to another program: give parameters of "
                "different models and guides different names, or call pyro.clear_param_store() before the second"
            )
        self.parameters[name] = value


def _collect(thing: Any, found: dict[int, nn.Module], seen: set[int]) -> None:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, nn.Module):
        found[id(thing)] = thing
    elif isinstance(thing, functools.partial):
        for each in (thing.func, *thing.args, *thing.keywords.values()):
            _collect(each, found, seen)
    elif isinstance(thing, TraceHandler):
        _collect(thing.fn, found, seen)
    elif isinstance(thing, MethodType):
        _collect(thing.__self__, found, seen)
        _collect(thing.__func__, found, seen)
    elif isinstance(thing, FunctionType):
        for each in references(thing).values():
            if isinstance(each, nn.Module | functools.partial | FunctionType | MethodType | list | tuple | dict):
                _collect(each, found, seen)
    elif isinstance(thing, list | tuple | dict):
        for each in thing.values() if isinstance(thing, dict) else thing:
            if isinstance(each, nn.Module):
                _collect(each, found, seen)


def _is_statement(thing: Any, seen: set[int]) -> bool:
    """Return True for Pyro's statements and handlers, modules that hold them, and functions that name any of these."""
    if isinstance(thing, functools.partial | MethodType | staticmethod | classmethod | property):
        inner = ("func", "__func__", "fget")
        return any(_is_statement(getattr(thing, name, None), seen) for name in inner)
    if isinstance(thing, FunctionType) and not _is_library(thing):
        if id(thing) in seen:
            return False
        seen.add(id(thing))
        cells = (cell.cell_contents for cell in thing.__closure__ or () if not _is_empty(cell))
        named = (thing.__globals__.get(name) for name in _names(thing.__code__))
        return any(_is_statement(each, seen) for each in (*cells, *named, getattr(thing, "__wrapped__", None)))
    if isinstance(thing, PyroSample):
        return True
    path = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    named = isinstance(thing, ModuleType | FunctionType | type) and isinstance(path, str)
    return named and (path == "pyro" or path.startswith(_STATEMENTS))


def _is_library(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in ("torch", "pyro", "probattn")


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names in a function and in functions defined inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
