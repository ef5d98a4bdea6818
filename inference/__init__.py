"""Inference: training by SVI, prediction, uncertainty methods, metrics, decisions, diagnostics,
checkpoints, export.

Sub-packages from the lowest level on: ``io``; ``objective``; ``prediction``; ``metrics``,
``methods``, ``export`` and ``posterior``; ``decisions``, ``diagnostics`` and ``training``. Each
imports lower levels only.
"""

import lazy_loader

# The names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
