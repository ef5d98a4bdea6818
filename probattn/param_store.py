"""Pyro's parameter store, which :class:`pyro.infer.SVI` trains: modules register there under SVI
alone.

A statement for each parameter in each step would take as long as a layer, and ``fit`` and PyTorch's
loops need none.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyro
from pyro.nn import PyroModule
from pyro.params.param_store import param_with_module_name
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from probattn.pyro_internals import PathModule, is_svi

_OWNED = WeakTensorKeyDictionary()
"""Parameters in the store that belong to a module of this process; those that ``load()`` has read
belong to none."""


def register_parameters(module: nn.Module, name: str) -> None:
    """Register a plain module's parameters under SVI, or take those that the store has under their
    names.

    Parameters that the module around this one has registered already are left alone.
    """
    if isinstance(module, PyroModule):
        return
    store = pyro.get_param_store()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if any(store.param_name(parameter) is None for parameter in trained):
        _register(name or type(module).__name__, module)
    _OWNED.update((parameter, True) for parameter in trained)


def follow_store(module: nn.Module, name: str) -> None:
    """Take the parameters that the store has under a plain module's names after ``load()``; outside
    SVI.

    So a loss or a prediction before the first step uses what was loaded, as with Pyro's AutoGuides.
    """
    store = pyro.get_param_store()
    if len(store) == 0 or isinstance(module, PyroModule):
        return
    prefix = name or type(module).__name__
    for key, parameter in module.named_parameters():
        full = param_with_module_name(prefix, key)
        if parameter.requires_grad and full in store and store[full] not in _OWNED:
            _register(prefix, module)
            return


def follow(module: nn.Module) -> None:
    """Take what the store has for a model or a guide of this library after ``load()`` (see
    :func:`follow_store`)."""
    if isinstance(module, StoredModule):
        for name, child in module.named_children():
            follow_store(child, f"{module.path}.{name}".removeprefix("."))


@contextmanager
def without_store_warnings() -> Iterator[None]:
    """Silence Pyro's warning about each frozen parameter of a plain module in a user's
    PyroModule."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*was not registered in the param store.*")
        yield


class StoredModule(PathModule):
    """PyroModule whose plain children register in the parameter store under SVI alone, and follow
    it there."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; under SVI, register its children first."""
        if is_svi():
            for name, child in self.named_children():
                if not isinstance(child, PyroModule):
                    _register(f"{self.path}.{name}".removeprefix("."), child)
        else:
            follow(self)
        return super().__call__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            value = nn.Module.__getattr__(self, name)
        except AttributeError:
            return super().__getattr__(name)
        is_plain = isinstance(value, nn.Module) and not isinstance(value, PyroModule)
        return value if is_plain else super().__getattr__(name)


def _register(name: str, module: nn.Module) -> None:
    """Register the trained parameters; those that the store holds after ``load()`` become the
    module's own.

    Raises:
        RuntimeError: a name in the store belongs to another module, which SVI would train with this
            one.
    """
    is_loaded = False
    for key, parameter in module.named_parameters():
        if parameter.requires_grad:
            stored = pyro.param(param_with_module_name(name, key), parameter)
            if stored is not parameter and stored in _OWNED:
                raise RuntimeError(
                    f"parameter {key!r} of {name!r} in Pyro's parameter store belongs to another "
                    "module. SVI would "
                    "train both. Call pyro.clear_param_store() first (trained modules keep their "
                    "parameters), "
                    "or train each model in its own `with pyro.get_param_store().scope():`"
                )
            _OWNED[stored] = True
            is_loaded |= stored is not parameter
    if is_loaded:
        with without_store_warnings():
            pyro.module(name, module, update_module_params=True)
