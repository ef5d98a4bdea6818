"""Decisions under uncertainty: thresholds for selective prediction, conformal sets and intervals.

May import ``metrics``, ``methods``, ``export``, ``posterior``, ``prediction``, ``distributed`` and
``io``.
"""

from probattn.inference.imports import without_side_effects

with without_side_effects():
    import scipy.special  # noqa: F401

from probattn.inference.decisions import conformal

__all__ = ["conformal"]
