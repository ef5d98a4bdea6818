"""Attention layers, each a Pyro program in a file of its own."""

from pkgutil import iter_modules

import lazy_loader

modules = [module.name for module in iter_modules(__path__)]
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, modules)
