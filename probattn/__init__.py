"""Uncertainty-aware attention: transformer attention layers as probabilistic programs in Pyro."""

import signal
import sys
from pathlib import PurePath
from pkgutil import extend_path, iter_modules
from typing import Any

import lazy_loader

# Until its `main` runs, Ctrl-C ends the command `probattn` as it ends a program of C, without a
# traceback.
is_command = PurePath((sys.argv or [""])[0]).stem in ("probattn", "-m")
if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

__version__ = "0.1.0"
__path__ = extend_path(
    __path__, __name__
)  # in the root of a clone this folder comes before the installed package

# Names and modules are imported when they are first used, since PyTorch and Pyro take seconds. The
# names are in `__init__.pyi`.
_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_module, _, _ = lazy_loader.attach(__name__, [module.name for module in iter_modules(__path__)])


def __getattr__(name: str) -> Any:
    """Return a public name, or a module of this package; `draws` and `local_sites` are names."""
    find = _name if name in __all__ else _module
    return find(name)
