"""Diagnostics: predictive checks, PSIS, simulation-based calibration, posterior collapse, attention, ArviZ export.

May import ``posterior``, ``metrics``, ``prediction`` and the rooms below them.
"""
