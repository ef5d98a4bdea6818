"""Diagnostics: predictive checks, PSIS, simulation-based calibration, convergence, collapse,
attention, ArviZ export.

May import ``posterior``, ``metrics`` and the rooms that these may import.
"""
