"""Pyro's parameter store, which :class:`pyro.infer.SVI` trains: modules register there under SVI alone.

A statement for each parameter in each step would take as long as a layer, and ``fit`` and PyTorch's loops need none.
"""

import warnings
from typing import Any

import pyro
from pyro.nn import PyroModule
from pyro.params.param_store import param_with_module_name
from torch import nn

from probattn.pyro_internals import PathModule, is_svi


def register_parameters(module: nn.Module, name: str) -> None:
    """Under SVI, register a plain module's parameters, or take those that the store has under their names.

    Parameters that the module around this one has registered already are left alone.
    """
    if not is_svi() or isinstance(module, PyroModule):
        return
    store = pyro.get_param_store()
    if any(store.param_name(parameter) is None for parameter in module.parameters() if parameter.requires_grad):
        _register(name or type(module).__name__, module)


class StoredModule(PathModule):
    """PyroModule whose plain children register in the parameter store under SVI alone, and follow it there."""

    path = ""

    def set_path(self, path: str) -> None:
        """Receive the path below the root PyroModule."""
        self.path = path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; under SVI, register its children first."""
        if is_svi():
            for name, child in self.named_children():
                if not isinstance(child, PyroModule):
                    _register(f"{self.path}.{name}".removeprefix("."), child)
        return super().__call__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            value = nn.Module.__getattr__(self, name)
        except AttributeError:
            return super().__getattr__(name)
        is_plain = isinstance(value, nn.Module) and not isinstance(value, PyroModule)
        return value if is_plain else super().__getattr__(name)


def _register(name: str, module: nn.Module) -> None:
    """Register the trained parameters; where the store has others, after ``load()``, the module uses those from now."""
    trained = ((key, parameter) for key, parameter in module.named_parameters() if parameter.requires_grad)
    stored = [pyro.param(param_with_module_name(name, key), parameter) is parameter for key, parameter in trained]
    if not all(stored):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*not registered in the param store.*")  # frozen parameters
            pyro.module(name, module, update_module_params=True)
