"""Pure, batched mathematics: functions of tensors, without Pyro, modules or state."""

from pkgutil import iter_modules

import lazy_loader

modules = [module.name for module in iter_modules(__path__)]
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, modules)
